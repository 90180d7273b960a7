"""Claims of the recipe `xbn_mlp` about the figures of the paper.

Statements about layers are tested for the first, the middle and the last third of the batch norms of a network; ESM is averaged
over the layers of a third, and compared as a ratio. The error gap is test error − training error. "Early" is the mean over the
first 30 iterations, or with another momentum m over 30 · 0.1 / m. "Exact start" are running statistics that start from those of
the first batch. All networks have momentum 0.1 unless a statement names another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from anynorm.lab.recipes.support.claims import OURS, RATIO, UNITS, Claim, Equivalent, Larger, Level, Published, Source
from anynorm.lab.recipes.support.quantities import Constant, Measured
from anynorm.lab.recipes.xbn.mlp.quantities import (
    NEAR_ZERO,
    WHOLE,
    bn_with_its_own_training,
    deeper,
    error_gap,
    final_shift,
    fits,
    growth_of,
    largest_early_shift,
    momentum_name,
    required,
    smallest_shift,
    subset,
    thirds,
    without_norm,
)
from anynorm.lab.recipes.xbn.mlp.settings import MlpSettings
from anynorm.lab.recipes.xbn.mlp.variations import claims_of_subsets, claims_of_variations

ESM = {"esm_std": ("Fig. 2b", "ESM_σ"), "esm_mean": ("Fig. 2c", "ESM_μ")}
"""The figure and the symbol of each column."""
LONGER = fits("none, trained longer")
SAME_LAYERS = 1.2
"""Largest ratio of two thirds of the layers that is called "nearly the same" and "no remarkable difference"."""


def claims(settings: MlpSettings) -> list[Claim]:
    """Return what the paper says about its figures, and about the network without norms."""
    result = [*_claims_whole(settings), *_claims_equal_layers(settings), *_claims_sizes(settings)]
    for size in settings.train_sizes:
        result += _claims_subset(settings, size)
    result += [*_claims_without_norm(settings), *claims_of_variations(settings)]
    return result + ([*claims_of_subsets(settings)] if settings.measure_subsets else [])


def _claims_whole(settings: MlpSettings) -> Iterator[Claim]:
    """Yield the claims about Figs. 2 and 4a: training set = test set."""
    count, name = settings.early_iterations, momentum_name()
    early, late = slice(0, count), slice(count, None)
    group, fitted = f"xbn Fig. 2, BN, {name}", required(settings, fits("bn"))
    yield Larger(
        statement=f"{name}: BN's error gap is larger in iterations 0–{count - 1} than later",
        source=Source("xbn", "Fig. 2a", "significant gaps in the first 30 epochs"),
        larger=error_gap(WHOLE["bn"], early),
        smaller=error_gap(WHOLE["bn"], late),
        group=group,
        requires=fitted,
    )
    for column, (figure, symbol) in ESM.items():
        source = Source("xbn", figure, "deeper layers have potentially higher values during the first 30 epochs")
        sides = thirds(column, WHOLE["bn"], early)
        yield from deeper(source, name, sides, group, symbol=f"early {symbol}", requires=fitted)
        yield Larger(
            statement=f"{name}: early {symbol} of a layer of BN is not zero (above {NEAR_ZERO})",
            source=Source("xbn", figure, "in certain layers significantly larger than zero in the first 30 epochs"),
            larger=largest_early_shift(column, WHOLE["bn"], early),
            smaller=Constant(NEAR_ZERO),
            scale=UNITS,
            level=Level.LAYER,
            group=group,
            requires=fitted,
        )
        yield Equivalent(
            statement=f"{name}: {symbol} of BN is zero after training (mean over layers)",
            source=Source("xbn", figure, "then gradually converge to zero"),
            first=final_shift(WHOLE["bn"], column=column),
            second=Constant(0.0),
            delta=NEAR_ZERO,
            scale=UNITS,
            group=group,
            requires=fitted,
        )
    yield Larger(
        statement="the early error gap is larger with BN than with GNBN",
        source=Source("xbn", "Fig. 4a", "gaps significantly reduced"),
        larger=error_gap(WHOLE["bn"], early),
        smaller=error_gap(WHOLE["gnbn"], early),
        requires=required(settings, fits("bn"), fits("gnbn")),
    )


def _claims_equal_layers(settings: MlpSettings) -> Iterator[Claim]:
    """Yield the equalities of Fig. 4b, for thirds of the early iterations and for the later ones."""
    count = settings.early_iterations
    edges = [0, count // 3, 2 * count // 3, count, settings.iterations]
    for start, stop in pairwise(edges):
        sides = thirds("esm_std", WHOLE["gnbn"], slice(start, stop))
        for name, side in (("middle", sides[1]), ("last", sides[2])):
            yield Equivalent(
                statement=f"Iterations {start}–{stop - 1}: ESM_σ of GNBN is equal in the {name} and the first third",
                source=Source("xbn", "Fig. 4b", "nearly the same among all layers during training"),
                first=side,
                second=sides[0],
                delta=SAME_LAYERS,
                scale=RATIO,
                level=Level.LAYER,
                group="xbn Fig. 4b, layers of GNBN",
                requires=required(settings, fits("gnbn")),
            )


def _claims_sizes(settings: MlpSettings) -> Iterator[Claim]:
    """Yield the claims about the size of the training set (Figs. 3a, 3b)."""
    for fewer, more in pairwise(sorted(settings.train_sizes)):
        cells = subset("bn", fewer), subset("bn", more)
        group = f"xbn Fig. 3, BN, |S| = {fewer} and {more}"
        fitted = required(settings, fits("bn", fewer), fits("bn", more))
        yield Larger(
            statement=f"|S| = {fewer}: BN's test error is larger than with |S| = {more}",
            source=Source("xbn", "Fig. 3a", "significantly higher with fewer samples"),
            larger=Measured("test_error", cells[0]),
            smaller=Measured("test_error", cells[1]),
            group=group,
            requires=fitted,
        )
        yield Larger(
            statement=f"|S| = {fewer}: the shift of the input (layer 0) is larger than with |S| = {more}",
            source=Source("xbn", "Fig. 3b", "the distribution shift is larger when decreasing the size"),
            larger=Measured("input_shift", cells[0]),
            smaller=Measured("input_shift", cells[1]),
            scale=RATIO,
            group=group,
        )
        for third, name in enumerate(("first", "middle", "last")):
            yield Larger(
                statement=f"|S| = {fewer}: ESM_σ of BN's {name} third of layers is larger than with {more}",
                source=Source("xbn", "Fig. 3b", "a BN layer in a model trained with fewer samples has higher ESM_σ"),
                larger=final_shift(cells[0], third),
                smaller=final_shift(cells[1], third),
                scale=RATIO,
                level=Level.LAYER,
                group=group,
                requires=fitted,
            )


def _claims_subset(settings: MlpSettings, size: int) -> Iterator[Claim]:
    """Yield the claims about networks trained on a subset (Figs. 3a, 3b, 5)."""
    name, bn, gnbn = f"|S| = {size}", subset("bn", size), subset("gnbn", size)
    bn_fits, gnbn_fits = required(settings, fits("bn", size)), required(settings, fits("gnbn", size))
    group = f"xbn Fig. 3, BN, {name}"
    yield Equivalent(
        statement=f"{name}: BN's training error is zero",
        source=Source("xbn", "Fig. 3a", "all the models can be trained with a zero training error"),
        first=Measured("train_error", bn),
        second=Constant(0.0),
        delta=0.5,
        group=group,
    )
    source = Source("xbn", "Fig. 3b", "deeper layers have potentially higher value at the end of training")
    sides = final_shift(bn, 0), final_shift(bn, 1), final_shift(bn, 2)
    yield from deeper(source, name, sides, group, requires=bn_fits)
    yield Larger(
        statement=f"{name}: ESM_σ of every layer of BN is above the mean with S = S'",
        source=Source("xbn", "Fig. 3b", "ESM_σ of all the BN layers are significantly larger than zero"),
        larger=smallest_shift(bn),
        smaller=final_shift(WHOLE["bn"]),
        scale=RATIO,
        level=Level.LAYER,
        group=group,
        requires=(*bn_fits, *required(settings, fits("bn"))),
    )
    for third, part in ((1, "middle"), (2, "last")):
        yield Equivalent(
            statement=f"{name}: ESM_σ of GNBN is equal in the {part} and the first third",
            source=Source("xbn", "Fig. 5a", "no remarkable difference among layers at the end of training"),
            first=final_shift(gnbn, third),
            second=final_shift(gnbn, 0),
            delta=SAME_LAYERS,
            scale=RATIO,
            level=Level.LAYER,
            group=f"xbn Fig. 5a, layers of GNBN, {name}",
            requires=gnbn_fits,
        )
    both = f"xbn Fig. 5, BN and GNBN, {name}"
    yield Larger(
        statement=f"{name}: ESM_σ grows more with depth in BN than in GNBN",
        source=OURS,
        larger=growth_of(bn),
        smaller=growth_of(gnbn),
        scale=RATIO,
        level=Level.LAYER,
        group=both,
        requires=(*bn_fits, *gnbn_fits),
    )
    yield Larger(
        statement=f"{name}: ESM_σ (mean over layers) is larger in BN than in GNBN",
        source=Source("xbn", "Fig. 5a", "significantly lower in GNBN"),
        larger=final_shift(bn),
        smaller=final_shift(gnbn),
        scale=RATIO,
        group=both,
        requires=(*bn_fits, *gnbn_fits),
    )
    yield Larger(
        statement=f"{name}: the test error is larger with BN than with GNBN",
        source=Source("xbn", "Fig. 5b", "significantly improved performance"),
        larger=Measured("test_error", bn),
        smaller=Measured("test_error", gnbn),
        group=both,
        requires=(*bn_fits, *gnbn_fits),
    )


def _claims_without_norm(settings: MlpSettings) -> Iterator[Claim]:
    """Yield the text's comparison of BN with the network without norms, for several trainings.

    It is the paper's claim if both networks have the same initialization, learning rate and number of steps, and ours if each has
    a training with which it fits.
    """
    smallest, trained = min(settings.train_sizes), without_norm(settings)
    init, how = trained["init"], f"{trained['lr']:g} × {trained['iterations']}"
    paper, bn_fits = Source("xbn", "sec. 4.2.1"), fits("bn", smallest)
    stated = f"lr {settings.lr:g} × {settings.iterations}, {settings.inits[0]}"
    trainings = [
        (stated, paper, subset("bn", smallest), subset("none", smallest), (bn_fits, fits("none"))),
        (f"own lr × steps, {init}", OURS, bn_with_its_own_training(settings), trained, (fits("bn, init of none"), LONGER)),
    ]
    if settings.equal_training:
        bn, same = without_norm(settings, "bn"), fits("bn, trained as none")
        trainings.insert(1, (f"lr {how}, {init}", paper, bn, trained, (same, LONGER)))
    for name, source, larger, smaller, names in trainings:
        yield Larger(
            statement=f"{name}: BN's test error is larger than without norms",
            source=source,
            published=Published(73.02, 57.73),
            larger=Measured("test_error", larger),
            smaller=Measured("test_error", smaller),
            requires=required(settings, *names),
        )
