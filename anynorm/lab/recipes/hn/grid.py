"""hn Fig. 2: the mean of one norm with the std of another, 36 pairs.

    anynorm reproduce hn_grid --preset night

Paper: ResNet-18 on CIFAR-10, batch sizes 128 and 4, learning rate 0.1 at 128, 200 epochs.

    smoke  64 digits, one epoch, three norms; checks that the code works and claims nothing
    desk   4000 images of CIFAR-10 at 8 × 8 pixels, 3 epochs (`support.presets.DESK_LARGER_MAPS`); batch sizes 32 and 2; a
           demonstration, which decides nothing unless its controls hold
    night  20 000 images at 16 × 16 pixels, 9375 steps (`support.presets.NIGHT`); the norms of the diagonal that the text names,
           the column of BN's mean, (en, bn), (in, ln) and (ln, in); batch sizes 32 and 2, 8 seeds
    paper  the published setting, complete (`support.presets.CIFAR10`)

Scaled down in `desk` and `night`: a small network on small images, 8 groups instead of 32, batch size 32 instead of 128, and 2
instead of 4: at 4 × 4 pixels the statistics of two images have 32 values, half of the paper's.
Claims that a pair repairs BN require that BN loses accuracy at the small batch size (10.46 points in the paper). What the paper
says of "most" of the 30 pairs of two norms is tested as a share of them, where all are measured (`desk`, `paper`).
"""

from __future__ import annotations

from functools import partial
from itertools import product

from anynorm.lab.recipes.hn.pair_grid import (
    BN,
    BN_LOSES,
    HN,
    Pair,
    PairGrid,
    accuracy_of_pair,
    best_pair_group,
    best_std_group,
    other_means_group,
    pair_claims,
    pair_grid_recipe,
)
from anynorm.lab.recipes.hn.published_grids import FIG_2A, FIG_2B, published_accuracy
from anynorm.lab.recipes.support.claims import UNITS, Check, Claim, Equivalent, Larger, Published, Source
from anynorm.lab.recipes.support.presets import CIFAR10, DESK_LARGER_MAPS, NIGHT, NIGHT_ACCURACY, SMOKE
from anynorm.lab.recipes.support.quantities import Computed, Constant, Quantity, accuracy_drop

NORMS = ("bn", "in", "ln", "gn:8", "en", "en:8")
NIGHT_PAIRS = (
    *(Pair("bn", norm) for norm in NORMS),
    *(Pair(norm, norm) for norm in NORMS[1:-1]),
    Pair("en", "bn"),
    Pair("in", "ln"),
    Pair("ln", "in"),
)
PRESETS = {
    "smoke": PairGrid(seeds=2, training=SMOKE, batch_sizes=(32, 4), norms=("bn", "gn:8", "en")),
    "desk": PairGrid(seeds=3, training=DESK_LARGER_MAPS, batch_sizes=(32, 2), norms=NORMS),
    "night": PairGrid(
        seeds=8,
        training=NIGHT,
        batch_sizes=(32, 2),
        norms=NORMS,
        only=NIGHT_PAIRS,
        min_train_accuracy=NIGHT_ACCURACY,
    ),
    "paper": PairGrid(
        seeds=3, training=CIFAR10, batch_sizes=(128, 4), norms=("bn", "in", "ln", "gn:32", "en", "en:32"), min_train_accuracy=80.0
    ),
}
EN_MEAN = Pair("en", "bn")
"""The mean of EN with the std of BN, the counterpart of HN."""
REPLACED_STATISTIC = Source(
    "hn",
    "sec. 4.6, replaced statistic",
    "replacing BN_std with EN_std is more effective than replacing BN_mean with EN_mean",
)
COMPARABLE = 1.0
"""Points within which accuracies are called comparable."""


def claims(settings: PairGrid) -> list[Claim | Check]:
    """Return what the paper reads from its figure; a pair is (norm of the mean, norm of the standard deviation)."""
    return [*_large_batch(settings), *_small_batch(settings), *_both_batches(settings)]


def _large_batch(settings: PairGrid) -> list[Claim | Check]:
    """Return the readings of Fig. 2a: BN is the best of the diagonal; with its mean, IN's std is not decent and EN's is best."""
    size, source = settings.batch_sizes[0], Source("hn", "Fig. 2a")
    order = partial(pair_claims, settings, batch_size=size, source=source, published=partial(published_accuracy, FIG_2A))
    same = [Pair(norm, norm) for norm in settings.norms if norm in ("in", "ln", "en") or norm.startswith("gn:")]
    means = [pair for pair in settings.pairs if pair.mean == "bn" and pair.std != "in"]
    mixed = product((Pair("in", "ln"), Pair("ln", "in")), (Pair("in", "in"), Pair("ln", "ln")))
    return [
        *order([(BN, pair) for pair in same]),
        *order(
            [(pair, Pair("bn", "in")) for pair in means], group=f"hn Fig. 2a, (BN, *) are decent except (BN, IN), batch {size}"
        ),
        *order([(HN, pair) for pair in means if pair != HN], group=best_pair_group(size)),
        *order([*mixed], group=f"hn Fig. 2a, (IN, LN) and (LN, IN) are better than (IN, IN) and (LN, LN), batch {size}"),
        *order([(HN, EN_MEAN)], source=REPLACED_STATISTIC),
    ]


def _small_batch(settings: PairGrid) -> list[Claim | Check]:
    """Return the readings of Fig. 2b: every other std repairs BN, that of EN with groups best."""
    size, source = settings.batch_sizes[1], Source("hn", "Fig. 2b")
    order = partial(pair_claims, settings, batch_size=size, source=source, published=partial(published_accuracy, FIG_2B))
    with_groups = [pair for pair in settings.pairs if pair.mean == "bn" and pair.std.startswith("en:")]
    other_stds = [pair for pair in settings.pairs if pair.mean == "bn" and pair not in (BN, HN, *with_groups)]
    others = [Pair(norm, norm) for norm in settings.norms[1:] if norm != "en"]
    decent = f"hn Fig. 2b, (BN, *) are all decent, batch {size}"
    result = order([(pair, BN) for pair in (HN, *with_groups)], repairs_bn=True)
    result += order([(pair, BN) for pair in other_stds], repairs_bn=True, group=decent)
    result += order([*product(with_groups, (HN, *other_stds))], group=best_std_group(size))
    result += order([(HN, pair) for pair in others])
    result += order([(HN, Pair("en", "en"))], group=other_means_group(size))
    result += order([(HN, EN_MEAN)], source=REPLACED_STATISTIC, repairs_bn=True)
    return result if settings.only else [*result, _most_are_better(settings)]


def _both_batches(settings: PairGrid) -> list[Claim | Check]:
    """Return the readings of Fig. 2b against Fig. 2a."""
    (large, small), source = settings.batch_sizes, Source("hn", "Fig. 2b")
    with_groups = [pair for pair in settings.pairs if pair.mean == "bn" and pair.std.startswith("en:")]
    result: list[Claim | Check] = [
        Larger(
            statement=f"{BN} loses accuracy from batch {large} to {small}",
            source=source,
            published=Published(published_accuracy(FIG_2A, BN), published_accuracy(FIG_2B, BN)),
            larger=accuracy_of_pair(BN, large),
            smaller=accuracy_of_pair(BN, small),
        )
    ]
    for pair in (HN, *with_groups):
        losses = [published_accuracy(FIG_2A, each) - published_accuracy(FIG_2B, each) for each in (BN, pair)]
        result.append(
            Larger(
                statement=f"{BN} loses more points from batch {large} to {small} than {pair}",
                source=source,
                published=Published(round(losses[0], 2), round(losses[1], 2)),
                larger=accuracy_drop(large, small, mean="bn", std="bn"),
                smaller=accuracy_drop(large, small, mean=pair.mean, std=pair.std),
                requires=(BN_LOSES,),
            )
        )
    result += [
        Equivalent(
            statement=f"{pair} at batch {small} is comparable to {BN} at batch {large}",
            source=source,
            published=Published(published_accuracy(FIG_2B, pair), published_accuracy(FIG_2A, BN)),
            first=accuracy_of_pair(pair, small),
            second=accuracy_of_pair(BN, large),
            delta=COMPARABLE,
        )
        for pair in with_groups
    ]
    return result if settings.only else [*result, _most_gain(settings)]


def _most_are_better(settings: PairGrid) -> Larger:
    """Return the claim that pairs of two norms win most of their comparisons with pairs of one norm."""
    size = settings.batch_sizes[1]
    two = [pair for pair in settings.pairs if pair.mean != pair.std]
    compared = [*product(two, [pair for pair in settings.pairs if pair.mean == pair.std])]
    wins = [published_accuracy(FIG_2B, pair) > published_accuracy(FIG_2B, one) for pair, one in compared]
    leads = [accuracy_of_pair(pair, size) - accuracy_of_pair(one, size) for pair, one in compared]
    return Larger(
        statement=f"pairs of two norms win most comparisons with pairs of one (batch {size}, % of {len(compared)})",
        source=Source("hn", "Fig. 2b", "Most heterologous combinations not only surpass the homologous combinations"),
        published=Published(round(100 * sum(wins) / len(wins), 1), 50),
        larger=Computed(_share_of_positive, leads),
        smaller=Constant(50),
        scale=UNITS,
    )


def _most_gain(settings: PairGrid) -> Larger:
    """Return the claim that most pairs of two norms are more accurate at the small batch size than at the large one."""
    large, small = settings.batch_sizes
    pairs = [pair for pair in settings.pairs if pair.mean != pair.std]
    gains: list[Quantity] = [accuracy_of_pair(pair, small) - accuracy_of_pair(pair, large) for pair in pairs]
    return Larger(
        statement=f"most pairs of two norms are better at batch {small} than at {large} (% of {len(pairs)} pairs)",
        source=Source("hn", "Fig. 2b", "but also outperform the corresponding ones with large batch size 128"),
        published=Published(round(_share_in_paper(pairs), 1), 50),
        larger=Computed(_share_of_positive, gains),
        smaller=Constant(50),
        scale=UNITS,
    )


def _share_of_positive(*values: float) -> float:
    return 100 * sum(value > 0 for value in values) / len(values)


def _share_in_paper(pairs: list[Pair]) -> float:
    """Return the % of pairs that are more accurate in Fig. 2b than in Fig. 2a; one whose training failed in Fig. 2a gains."""

    def gains(pair: Pair) -> bool:
        try:
            return published_accuracy(FIG_2B, pair) > published_accuracy(FIG_2A, pair)
        except KeyError:
            return True

    return 100 * sum(map(gains, pairs)) / len(pairs)


RECIPE = pair_grid_recipe("hn_grid", PRESETS, claims)
