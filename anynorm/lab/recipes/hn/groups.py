"""hn Fig. 3: the number of groups of EN for the mean and for the std.

    anynorm reproduce hn_groups --preset desk

Paper: ResNet-18 on CIFAR-10 with EN of C, 32, 16, 8, 4 and 1 groups for each statistic, batch sizes 128 and 4. EN with as many
groups as channels (C) is BN.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   4000 images of CIFAR-10 at 8 × 8 pixels, ResNet-10, 3 epochs (`support.presets.DESK_4000`); batch size 2
    paper  the published setting, complete (`support.presets.CIFAR10`)

Scaled down in `desk`: C, 16, 4 and 1 groups. The claims are about the order of the pairs.
"""

from __future__ import annotations

from anynorm.lab.recipes.hn.pair_grid import more_accurate_pair, pair_grid_recipe
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.norm_grid import NormGrid
from anynorm.lab.recipes.support.presets import CIFAR10, DESK_4000, SMOKE

PRESETS = {
    "smoke": NormGrid(seeds=2, training=SMOKE, batch_sizes=(4,), norms=("bn", "en")),
    "desk": NormGrid(seeds=3, training=DESK_4000, batch_sizes=(2,), norms=("bn", "en:16", "en:4", "en")),
    "paper": NormGrid(seeds=3, training=CIFAR10, batch_sizes=(128, 4), norms=("bn", "en:32", "en:16", "en:8", "en:4", "en")),
}
BY_STD = {"bn": 84.59, "en:32": 95.04, "en:16": 94.95, "en:8": 95.17, "en:4": 94.72, "en": 94.93}
"""Fig. 3b: accuracy in % with the mean of BN, by the norm of the standard deviation."""
BY_MEAN = {"bn": 94.93, "en:32": 94.37, "en:16": 94.28, "en:8": 93.87, "en:4": 93.89, "en": 93.69}
"""Fig. 3b: accuracy in % with the standard deviation of EN, by the norm of the mean."""


def claims(settings: NormGrid) -> list[Claim]:
    """Return what the paper reads from Fig. 3b: one mean per channel and a standard deviation over more channels is best."""
    size, norms = settings.batch_sizes[-1], settings.norms
    stds = [more_accurate_pair(("bn", std), ("bn", "bn"), size, f"{BY_STD[std]} and {BY_STD['bn']}") for std in norms[1:]]
    means = [more_accurate_pair(("bn", "en"), (mean, "en"), size, f"{BY_MEAN['bn']} and {BY_MEAN[mean]}") for mean in norms[1:]]
    return stds + means


RECIPE = pair_grid_recipe("hn_groups", PRESETS, claims)
