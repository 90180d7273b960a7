"""Claims of the recipe `xbn_mlp` about other settings, curves of subsets, and running statistics on the training set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anynorm.lab.recipes.support.claims import OURS, RATIO, UNITS, Claim, Equivalent, Larger, Source
from anynorm.lab.recipes.support.quantities import Constant, Measured
from anynorm.lab.recipes.xbn.mlp_quantities import (
    NEAR_ZERO,
    WHOLE,
    deeper,
    error_gap,
    final_shift,
    subset,
    thirds,
    windowed_shift,
)
from anynorm.lab.recipes.xbn.mlp_results import MlpSettings

STABLE = 1.1
"""Largest ratio of ESM_σ in two successive windows at the end of training that is called stable."""


def claims_of_variations(settings: MlpSettings) -> Iterator[Claim]:
    """Yield the claims about other settings (captions of Figs. 2 and 4), the start of the running statistics, and α."""
    count = settings.early_iterations
    early, late = slice(0, count), slice(count, None)
    source = Source("xbn", "Fig. 2 caption", "other learning rates, α and depths: similar results")
    cells: list[dict[str, Any]] = [
        {"figure": name, name: value} for name in ("lr", "depth") for value in getattr(settings, f"{name}s")
    ]
    if settings.first_batch_start:
        cells.append({"figure": "start", "network": "bn"})
    for cell in cells:
        name = "start from the first batch" if cell["figure"] == "start" else f"{cell['figure']} {cell[str(cell['figure'])]}"
        group = f"xbn Fig. 2, {name}"
        yield Larger(
            statement=f"{name}: BN's gap (points) is larger in the first {count} iterations than later",
            source=OURS if cell["figure"] == "start" else source,
            larger=error_gap(cell, early),
            smaller=error_gap(cell, late),
            group=group,
        )
        place = Source("xbn", "Fig. 2b", "with the initial value of the buffers removed") if cell["figure"] == "start" else source
        yield from deeper(place, f"{name}: ESM_σ", thirds("esm_std", cell, early), f"first {count} iterations", group)
    for momentum in settings.momenta:
        yield Larger(
            statement=f"BN's gap (points, first {count} iterations) is larger with torch's momentum 0.1 than with {momentum}",
            source=OURS,
            larger=error_gap(WHOLE["bn"], early),
            smaller=error_gap({"figure": "momentum", "momentum": momentum}, early),
        )
    for groups in settings.groups:
        yield Larger(
            statement=f"the gap (points, first {count} iterations) is larger with BN than with GN:{groups} on odd layers",
            source=Source("xbn", "Fig. 4 caption", "other group numbers: similar observations"),
            larger=error_gap(WHOLE["bn"], early),
            smaller=error_gap({"figure": "groups", "groups": groups}, early),
            group="xbn Fig. 4, other group numbers",
        )
    if settings.first_batch_start:
        yield Larger(
            statement=f"BN's gap (points, first {count} iterations) is larger with a start from (0, 1) than from the first batch",
            source=OURS,
            larger=error_gap(WHOLE["bn"], early),
            smaller=error_gap({"figure": "start", "network": "bn"}, early),
        )
        yield Larger(
            statement=f"start from the first batch: the gap (points, first {count} iterations) is larger with BN than with GNBN",
            source=Source("xbn", "Fig. 4a", "with the initial value of the buffers removed"),
            larger=error_gap({"figure": "start", "network": "bn"}, early),
            smaller=error_gap({"figure": "start", "network": "gnbn"}, early),
        )


def claims_of_subsets(settings: MlpSettings) -> Iterator[Claim]:
    """Yield the claims about curves of subsets (Fig. 3c), and about statistics on the training set (secs. 4.1, 4.2.1)."""
    window = max(1, settings.iterations // 8)
    for size in settings.train_sizes:
        bn = subset("bn", size)
        yield Equivalent(
            statement=f"|S| = {size}: ESM_σ of BN is stable over the last {2 * window} iterations",
            source=Source("xbn", "Fig. 3c", "gradually converges to a stable value"),
            first=windowed_shift(bn, slice(-window, None)),
            second=windowed_shift(bn, slice(-2 * window, -window)),
            delta=STABLE,
            scale=RATIO,
            group="xbn Fig. 3c, stable value",
        )
        yield Equivalent(
            statement=f"|S| = {size}: ESM_σ of BN on the training set is zero after training (mean over layers)",
            source=Source("xbn", "sec. 4.2.1", "ESM_σ will be zero if it is defined on F(S)"),
            first=final_shift(bn, column="train_esm_std"),
            second=Constant(0.0),
            delta=NEAR_ZERO,
            scale=UNITS,
            group="xbn sec. 4.2.1, shift on the training set",
        )
        yield Larger(
            statement=f"|S| = {size}: the test error (points) is larger with recomputed than with running statistics",
            source=Source("xbn", "sec. 4.1", "usually worse than the running average"),
            larger=Measured("recomputed_error", bn),
            smaller=Measured("test_error", bn),
            group="xbn sec. 4.1, recomputed statistics",
        )
