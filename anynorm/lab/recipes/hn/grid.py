"""hn Fig. 2: the mean of one norm with the std of another, 36 pairs.

    anynorm reproduce hn_grid --preset desk

Paper: ResNet-18 on CIFAR-10, batch sizes 128 and 4, learning rate 0.1 at 128, 200 epochs.

    smoke  64 digits, one epoch, three norms; checks that the code works and claims nothing
    desk   4000 images of CIFAR-10 at 8 × 8 pixels, 3 epochs (`support.presets.DESK_LARGER_MAPS`); batch sizes 32 and 2
    paper  the published setting, complete (`support.presets.CIFAR10`)

Scaled down in `desk`: a small network on tiny images, and 8 groups instead of 32. The claims are about the order of the pairs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from anynorm.lab.recipes.hn.pair_grid import more_accurate_pair, pair_grid_recipe
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.norm_grid import NormGrid
from anynorm.lab.recipes.support.presets import CIFAR10, DESK_LARGER_MAPS, SMOKE
from anynorm.lab.recipes.support.rows import Values, accuracy_drop, select
from anynorm.lab.training.sweep import Row

PRESETS = {
    "smoke": NormGrid(seeds=2, training=SMOKE, batch_sizes=(32, 4), norms=("bn", "gn:8", "en")),
    "desk": NormGrid(seeds=3, training=DESK_LARGER_MAPS, batch_sizes=(32, 2), norms=("bn", "in", "ln", "gn:8", "en", "en:8")),
    "paper": NormGrid(seeds=3, training=CIFAR10, batch_sizes=(128, 4), norms=("bn", "in", "ln", "gn:32", "en", "en:32")),
}
FIG_2B = {"in": 93.47, "ln": 92.90, "gn:8": 94.06, "gn:32": 94.06, "en": 93.69, "en:8": 94.17, "en:32": 94.17}
"""The paper's accuracy in % at batch size 4 with mean and standard deviation of the same norm (the diagonal of Fig. 2b)."""


def claims(settings: NormGrid) -> list[Claim]:
    """Return what the paper reads from its figure; a pair is (norm of the mean, norm of the standard deviation)."""
    (large, small), norms = settings.batch_sizes, settings.norms
    hn, bn = ("bn", "en"), ("bn", "bn")
    result = [
        more_accurate_pair(hn, bn, small, "94.93 and 84.59"),
        more_accurate_pair(hn, bn, large, "95.18 and 95.05"),
        _bn_loses_more("en", settings),
    ]
    for grouped in [norm for norm in norms if norm.startswith("en:")]:
        result += [more_accurate_pair(("bn", grouped), bn, small, "95.04 and 84.59"), _bn_loses_more(grouped, settings)]
    result += [more_accurate_pair(hn, (norm, norm), small, f"94.93 and {FIG_2B[norm]}") for norm in norms[1:]]
    statement = f"pairs of two norms are more accurate than pairs of the same norm, on average (batch {small})"
    result.append(Claim(statement, "most are", _average(norms, small, same=False), _average(norms, small, same=True)))
    return result


def _bn_loses_more(std: str, settings: NormGrid) -> Claim:
    large, small = settings.batch_sizes
    statement = f"(bn, bn) loses more points from batch {large} to {small} than (bn, {std})"
    drops = [accuracy_drop(large, small, mean="bn", std=norm) for norm in ("bn", std)]
    return Claim(statement, "10.46 and 0.25" if std == "en" else "10.46 and -0.07", *drops)


def _average(norms: Sequence[str], batch_size: int, *, same: bool) -> Values:
    """Return a function that averages the accuracy over the pairs of the same norm, or of two norms."""
    pairs = [(mean, std) for mean in norms for std in norms if (mean == std) == same]

    def average(rows: list[Row]) -> list[float | None]:
        by_pair = [select(rows, "accuracy", mean=mean, std=std, batch_size=batch_size) for mean, std in pairs]
        return [None if None in values else statistics.fmean(values) for values in zip(*by_pair, strict=True)]

    return average


RECIPE = pair_grid_recipe("hn_grid", PRESETS, claims)
