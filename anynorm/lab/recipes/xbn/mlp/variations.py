"""Claims of the recipe `xbn_mlp` about other settings, curves of subsets, and running statistics on the training set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from anynorm.lab.recipes.support.claims import OURS, RATIO, UNITS, Claim, Equivalent, Larger, Source
from anynorm.lab.recipes.support.quantities import Constant, Measured
from anynorm.lab.recipes.xbn.mlp.quantities import (
    EXACT_START,
    NEAR_ZERO,
    WHOLE,
    deeper,
    error_gap,
    final_shift,
    fits,
    grouped,
    momentum_name,
    required,
    started,
    subset,
    thirds,
    variations,
    windowed_shift,
)
from anynorm.lab.recipes.xbn.mlp.settings import MOMENTUM, PRINTED_MOMENTUM, MlpSettings

STABLE = 1.1
"""Largest ratio of ESM_σ in two successive windows at the end of training that is called stable."""
CAPTION = Source("xbn", "Fig. 2 caption", "other learning rates, α and depths: similar results")
PRINTED = Source("xbn", "Fig. 2, α as printed", "eq. 3: α, stated as 0.9, is the weight of the newest batch")
SOURCES = {momentum_name(PRINTED_MOMENTUM): PRINTED, EXACT_START: OURS}
"""The sources of the settings that are not those of the caption."""
USUAL = {momentum_name(PRINTED_MOMENTUM): "momentum 0.1", EXACT_START: "a start from (0, 1)"}
"""What the networks of Fig. 2 have instead of these settings."""


def claims_of_variations(settings: MlpSettings) -> Iterator[Claim]:
    """Yield the claims about other settings (captions of Figs. 2 and 4), α as printed, and the start of the statistics."""
    early = slice(0, settings.early_iterations)
    fitted = required(settings, fits("bn"))
    for name, cell in variations(settings).items():
        count = _num_early(settings, cell)
        source, group, varied = SOURCES.get(name, CAPTION), f"xbn Fig. 2, BN, {name}", required(settings, fits(name))
        yield Larger(
            statement=f"{name}: BN's error gap is larger in iterations 0–{count - 1} than later",
            source=source,
            larger=error_gap(cell, slice(0, count)),
            smaller=error_gap(cell, slice(count, None)),
            group=group,
            requires=varied,
        )
        yield from deeper(source, name, thirds("esm_std", cell, slice(0, count)), group, symbol="early ESM_σ", requires=varied)
        if source is not CAPTION:
            yield Larger(
                statement=f"{name}: BN's early error gap is smaller than with {USUAL[name]}",
                source=OURS,
                larger=error_gap(WHOLE["bn"], early),
                smaller=error_gap(cell, early),
                requires=(*fitted, *varied),
            )
    for groups in settings.groups:
        yield Larger(
            statement=f"GN:{groups} on odd layers: the early error gap is smaller than BN's",
            source=Source("xbn", "Fig. 4 caption", "other group numbers: similar observations"),
            larger=error_gap(WHOLE["bn"], early),
            smaller=error_gap(grouped(groups), early),
            requires=(*fitted, *required(settings, fits(f"gnbn, {groups} groups"))),
        )
    if settings.first_batch_start:
        yield Larger(
            statement=f"{EXACT_START}: the early error gap is larger with BN than with GNBN",
            source=OURS,
            larger=error_gap(started("bn"), early),
            smaller=error_gap(started("gnbn"), early),
            requires=required(settings, fits(EXACT_START), fits(f"gnbn, {EXACT_START}")),
        )


def _num_early(settings: MlpSettings, cell: Mapping[str, Any]) -> int:
    """Return the number of early iterations: the paper's for both readings of its α, or else scaled to 1 / momentum."""
    momentum = cell.get("momentum", MOMENTUM)
    factor = 1.0 if momentum == PRINTED_MOMENTUM else MOMENTUM / momentum
    return round(settings.early_iterations * factor)


def claims_of_subsets(settings: MlpSettings) -> Iterator[Claim]:
    """Yield the claims about curves of subsets (Fig. 3c), and about statistics on the training set (secs. 4.1, 4.2.1)."""
    window = max(1, settings.iterations // 8)
    for size in settings.train_sizes:
        name, bn, fitted = f"|S| = {size}", subset("bn", size), required(settings, fits("bn", size))
        group = f"xbn Fig. 3, BN, {name}"
        yield Equivalent(
            statement=f"{name}: ESM_σ of BN is stable over the last {2 * window} iterations",
            source=Source("xbn", "Fig. 3c", "gradually converges to a stable value"),
            first=windowed_shift(bn, slice(-window, None)),
            second=windowed_shift(bn, slice(-2 * window, -window)),
            delta=STABLE,
            scale=RATIO,
            group=group,
            requires=fitted,
        )
        yield Equivalent(
            statement=f"{name}: ESM_σ of BN is zero on the training set (mean over layers)",
            source=Source("xbn", "sec. 4.2.1, training set", "ESM_σ will be zero if it is defined on F(S)"),
            first=final_shift(bn, column="train_esm_std"),
            second=Constant(0.0),
            delta=NEAR_ZERO,
            scale=UNITS,
            group=group,
            requires=fitted,
        )
        yield Larger(
            statement=f"{name}: BN's test error is larger with recomputed statistics",
            source=Source("xbn", "sec. 4.1", "usually worse than the running average"),
            larger=Measured("recomputed_error", bn),
            smaller=Measured("test_error", bn),
            group=group,
            requires=fitted,
        )
