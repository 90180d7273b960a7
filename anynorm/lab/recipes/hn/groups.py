"""hn Fig. 3: the number of groups of EN for the mean and for the std.

    anynorm reproduce hn_groups --preset night

Paper: ResNet-18 on CIFAR-10 with EN of C, 32, 16, 8, 4 and 1 groups for each statistic, batch sizes 128 and 4. EN with as many
groups as channels (C) is BN.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   4000 images of CIFAR-10 at 8 × 8 pixels, ResNet-10, 3 epochs (`support.presets.DESK_4000`); batch size 2; a
           demonstration, which decides nothing unless its controls hold
    night  20 000 images at 16 × 16 pixels, 9375 steps (`support.presets.NIGHT`); C, 8, 4 and 1 groups for the std with BN's mean,
           and for the mean with EN's std; batch sizes 32 and 2, 8 seeds
    paper  the published setting, complete (`support.presets.CIFAR10`)

`desk` has C, 16, 4 and 1 groups. Its first stage has 16 channels, so `en:16` is BN there; and its last maps have 1 × 1 pixels, so
that a mean over two samples has two values (64 in the paper). `night` has no more than 8 groups, fewer than any layer has
channels, and maps of 4 × 4 pixels; its small batch size is 2, at which BN loses accuracy in the pilot. Claims that a pair repairs
BN require that BN loses accuracy at the small batch size.
"""

from __future__ import annotations

from functools import partial

from anynorm.lab.recipes.hn.pair_grid import (
    BN,
    HN,
    Pair,
    PairGrid,
    best_pair_group,
    best_std_group,
    other_means_group,
    pair_claims,
    pair_grid_recipe,
)
from anynorm.lab.recipes.hn.published_grids import FIG_3A, FIG_3B, published_accuracy
from anynorm.lab.recipes.support.claims import Check, Claim, Source
from anynorm.lab.recipes.support.presets import CIFAR10, DESK_4000, NIGHT, NIGHT_ACCURACY, SMOKE

NIGHT_NORMS = ("bn", "en:8", "en:4", "en")
PRESETS = {
    "smoke": PairGrid(seeds=2, training=SMOKE, batch_sizes=(4,), norms=("bn", "en")),
    "desk": PairGrid(seeds=3, training=DESK_4000, batch_sizes=(2,), norms=("bn", "en:16", "en:4", "en")),
    "night": PairGrid(
        seeds=8,
        training=NIGHT,
        batch_sizes=(32, 2),
        norms=NIGHT_NORMS,
        only=(*(Pair("bn", norm) for norm in NIGHT_NORMS), *(Pair(norm, "en") for norm in NIGHT_NORMS[1:])),
        min_train_accuracy=NIGHT_ACCURACY,
    ),
    "paper": PairGrid(
        seeds=3,
        training=CIFAR10,
        batch_sizes=(128, 4),
        norms=("bn", "en:32", "en:16", "en:8", "en:4", "en"),
        min_train_accuracy=80.0,
    ),
}


def claims(settings: PairGrid) -> list[Claim | Check]:
    """Return what the paper reads from its figure: one mean per channel and a standard deviation over more channels is best.

    (C, 1) is the best pair at the large batch size, and (C, 8) at the small one.
    """
    *large, small = settings.batch_sizes
    others = settings.norms[1:]
    stds, means = [Pair("bn", norm) for norm in others], [Pair(norm, "en") for norm in others]
    result: list[Claim | Check] = []
    for size in large:
        order = partial(
            pair_claims, settings, batch_size=size, source=Source("hn", "Fig. 3a"), published=partial(published_accuracy, FIG_3A)
        )
        result += order([(HN, pair) for pair in (BN, *stds, *means) if pair != HN], group=best_pair_group(size))
    order = partial(
        pair_claims, settings, batch_size=small, source=Source("hn", "Fig. 3b"), published=partial(published_accuracy, FIG_3B)
    )
    result += order([(pair, BN) for pair in stds], repairs_bn=True)
    result += order([(HN, pair) for pair in means], group=other_means_group(small))
    best = Pair("bn", "en:8")
    result += order([(best, pair) for pair in means], group=other_means_group(small))
    return result + order([(best, pair) for pair in stds if pair != best], group=best_std_group(small))


RECIPE = pair_grid_recipe("hn_groups", PRESETS, claims)
