"""hn Fig. 2: the mean of one norm with the deviation of another, all 36 pairs of six, at a large and a small batch.

    anynorm reproduce hn_grid --preset desk        (data: CIFAR-10)

The paper trains ResNet-18 on CIFAR-10 at batch 128 and 4, learning rate 0.1 for 128, 200 epochs. `desk` scales that down to
`anynorm.recipes.support.presets.GRID` at batch 32 and 2, with 8 groups where the paper has 32. What is claimed is the ordering.

`paper` is the published setting, complete. `smoke` claims nothing. `desk` took 37 minutes on two cores.
"""

from __future__ import annotations

import statistics

from anynorm.recipes.support.claims import Claim, pick
from anynorm.recipes.support.pair_grid import better, pairs
from anynorm.recipes.support.presets import CIFAR, GRID, SMOKE, Numbers, fall
from anynorm.recipes.support.recipe import Settings
from anynorm.recipes.support.record import Row

PRESETS: dict[str, Settings] = {
    "smoke": SMOKE | {"batch_sizes": [32, 4], "cuts": ["bn", "gn:8", "en"]},
    "desk": GRID | {"batch_sizes": [32, 2], "cuts": ["bn", "in", "ln", "gn:8", "en", "en:8"]},
    "paper": CIFAR | {"batch_sizes": [128, 4], "cuts": ["bn", "in", "ln", "gn:32", "en", "en:32"]},
}
FIG_2 = {"in": 93.47, "ln": 92.90, "gn:8": 94.06, "gn:32": 94.06, "en": 93.69, "en:8": 94.17, "en:32": 94.17}
"""Fig. 2b, the diagonal: mean and deviation of the same norm, batch 4."""


def claims(settings: Settings) -> list[Claim]:
    """List what the paper reads from its figure."""
    (large, small), cuts = settings["batch_sizes"], settings["cuts"]
    hn, bn = ("bn", "en"), ("bn", "bn")
    found = [better(hn, bn, small, "94.93 and 84.59"), better(hn, bn, large, "95.18 and 95.05"), _loses_more("en", settings)]
    if groups := [cut for cut in cuts if cut.startswith("en:")]:
        found += [better(("bn", groups[0]), bn, small, "95.04 and 84.59"), _loses_more(groups[0], settings)]
    found += [better(hn, (cut, cut), small, f"94.93 and {FIG_2[cut]}") for cut in cuts[1:]]
    says = f"pairs that differ are better than pairs that do not, on average (batch {small})"
    found.append(Claim(says, "most are", _average(cuts, small, apart=True), _average(cuts, small, apart=False)))
    return found


def _loses_more(std: str, settings: Settings) -> Claim:
    large, small = settings["batch_sizes"]
    says = f"(bn, bn) loses more points from batch {large} to {small} than (bn, {std})"
    more, less = fall(large, small, mean="bn", std="bn"), fall(large, small, mean="bn", std=std)
    return Claim(says, "10.46 and 0.25" if std == "en" else "10.46 and -0.07", more, less)


def _average(cuts: list[str], size: int, *, apart: bool) -> Numbers:
    """Give the mean accuracy of the pairs of different, or of the same cuts, a number a seed."""
    chosen = [(mean, std) for mean in cuts for std in cuts if (mean != std) == apart]

    def found(rows: list[Row]) -> list[float | None]:
        by_pair = [pick(rows, "accuracy", mean=mean, std=std, batch_size=size) for mean, std in chosen]
        return [None if None in seed else statistics.fmean(seed) for seed in zip(*by_pair, strict=True)]

    return found


RECIPE = pairs("hn_grid", PRESETS, claims)
