"""Claims of the recipe `xbn_mlp` about the figures of the paper.

Statements about layers are tested for the first, the middle and the last third of the batch norms of a network; ESM is averaged
over the layers of a third, and compared as a ratio.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from anynorm.lab.recipes.support.claims import (
    OURS,
    RATIO,
    UNITS,
    Claim,
    Equivalent,
    Larger,
    Level,
    Published,
    Source,
)
from anynorm.lab.recipes.support.quantities import Constant, Measured
from anynorm.lab.recipes.xbn.mlp_quantities import (
    NEAR_ZERO,
    WHOLE,
    deeper,
    error_gap,
    final_shift,
    fits,
    growth_of,
    required,
    subset,
    thirds,
    trained_without_norm,
)
from anynorm.lab.recipes.xbn.mlp_results import MlpSettings
from anynorm.lab.recipes.xbn.mlp_variations import claims_of_subsets, claims_of_variations

ESM = {"esm_std": ("Fig. 2b", "ESM_σ"), "esm_mean": ("Fig. 2c", "ESM_μ")}
"""The figure and the symbol of each column."""
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
    count = settings.early_iterations
    early, late = slice(0, count), slice(count, None)
    yield Larger(
        statement=f"BN's gap of test and training error (points) is larger in the first {count} iterations than later",
        source=Source("xbn", "Fig. 2a", "significant gaps in the first 30 epochs"),
        larger=error_gap(WHOLE["bn"], early),
        smaller=error_gap(WHOLE["bn"], late),
        requires=required(settings, fits("bn")),
    )
    for column, (figure, symbol) in ESM.items():
        source = Source("xbn", figure, "deeper layers have potentially higher values during the first 30 epochs")
        where = f"first {count} iterations"
        yield from deeper(source, symbol, thirds(column, WHOLE["bn"], early), where, f"xbn {figure}, deeper layers")
        yield Equivalent(
            statement=f"{symbol} converges to zero: after training its mean over layers is below {NEAR_ZERO}",
            source=Source("xbn", figure, "then gradually converge to zero"),
            first=final_shift(WHOLE["bn"], column=column),
            second=Constant(0.0),
            delta=NEAR_ZERO,
            scale=UNITS,
        )
    yield Larger(
        statement=f"in the first {count} iterations the gap (points) is larger with BN than with GN on the odd layers",
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
                statement=f"GNBN: ESM_σ of the {name} third of the layers is that of the first, iterations {start} to {stop - 1}",
                source=Source("xbn", "Fig. 4b", "nearly the same among all layers during training"),
                first=side,
                second=sides[0],
                delta=SAME_LAYERS,
                scale=RATIO,
                level=Level.LAYER,
                group=f"xbn Fig. 4b, {'first' if stop <= count else 'later'} iterations",
            )


def _claims_sizes(settings: MlpSettings) -> Iterator[Claim]:
    """Yield the claims about the size of the training set (Figs. 3a, 3b)."""
    for fewer, more in pairwise(sorted(settings.train_sizes)):
        cells = subset("bn", fewer), subset("bn", more)
        yield Larger(
            statement=f"BN's test error (points) is larger with |S| = {fewer} than with {more}",
            source=Source("xbn", "Fig. 3a", "significantly higher with fewer samples"),
            larger=Measured("test_error", cells[0]),
            smaller=Measured("test_error", cells[1]),
            group="xbn Fig. 3a, test error",
            requires=required(settings, fits("bn", fewer), fits("bn", more)),
        )
        yield Larger(
            statement=f"the shift of the input (layer 0) is larger with |S| = {fewer} than with {more}",
            source=Source("xbn", "Fig. 3b", "the distribution shift is larger when decreasing the size"),
            larger=Measured("input_shift", cells[0]),
            smaller=Measured("input_shift", cells[1]),
            scale=RATIO,
            group="xbn Fig. 3b, input",
        )
        for third, name in enumerate(("first", "middle", "last")):
            yield Larger(
                statement=f"ESM_σ of the {name} third of BN's layers is larger with |S| = {fewer} than with {more}",
                source=Source("xbn", "Fig. 3b", "a BN layer in a model trained with fewer samples has higher ESM_σ"),
                larger=final_shift(cells[0], third),
                smaller=final_shift(cells[1], third),
                scale=RATIO,
                level=Level.LAYER,
                group="xbn Fig. 3b, fewer samples",
            )


def _claims_subset(settings: MlpSettings, size: int) -> Iterator[Claim]:
    """Yield the claims about networks trained on a subset (Figs. 3a, 3b, 5)."""
    bn, gnbn = subset("bn", size), subset("gnbn", size)
    fitted = required(settings, fits("bn", size), fits("gnbn", size))
    yield Equivalent(
        statement=f"|S| = {size}: BN is trained to a training error of zero (points)",
        source=Source("xbn", "Fig. 3a", "all the models can be trained with a zero training error"),
        first=Measured("train_error", bn),
        second=Constant(0.0),
        delta=0.5,
        group="xbn Fig. 3a, training error",
    )
    source = Source("xbn", "Fig. 3b", "deeper layers have potentially higher value at the end of training")
    sides = final_shift(bn, 0), final_shift(bn, 1), final_shift(bn, 2)
    yield from deeper(source, "ESM_σ of BN", sides, f"|S| = {size}", f"xbn Fig. 3b, deeper layers, {size}")
    for third, name in ((1, "middle"), (2, "last")):
        yield Equivalent(
            statement=f"|S| = {size}, GNBN: ESM_σ of the {name} third of the layers is that of the first",
            source=Source("xbn", "Fig. 5a", "no remarkable difference among layers at the end of training"),
            first=final_shift(gnbn, third),
            second=final_shift(gnbn, 0),
            delta=SAME_LAYERS,
            scale=RATIO,
            level=Level.LAYER,
            group=f"xbn Fig. 5a, layers of GNBN, {size}",
        )
    yield Larger(
        statement=f"|S| = {size}: ESM_σ of the last third of layers ÷ that of the first is larger in BN than in GNBN",
        source=OURS,
        larger=growth_of(bn),
        smaller=growth_of(gnbn),
        scale=RATIO,
    )
    yield Larger(
        statement=f"|S| = {size}: the mean ESM_σ is larger with BN than with GN on the odd layers",
        source=Source("xbn", "Fig. 5a", "significantly lower in GNBN"),
        larger=final_shift(bn),
        smaller=final_shift(gnbn),
        scale=RATIO,
        requires=fitted,
    )
    yield Larger(
        statement=f"|S| = {size}: the test error (points) is larger with BN than with GN on the odd layers",
        source=Source("xbn", "Fig. 5b", "significantly improved performance"),
        larger=Measured("test_error", bn),
        smaller=Measured("test_error", gnbn),
        requires=fitted,
    )


def _claims_without_norm(settings: MlpSettings) -> Iterator[Claim]:
    """Yield the text's comparison of BN with the network without norms, which depends on how the latter is trained."""
    smallest, trained = min(settings.train_sizes), trained_without_norm(settings)
    bn, stated = (Measured("test_error", subset(network, smallest)) for network in ("bn", "none"))
    how = f"{trained['init']} initialization, lr {trained['lr']}, {trained['iterations']} iterations"
    as_stated = f"as stated: torch's initialization, lr {settings.lr}, {settings.iterations} iterations"
    for setting, name, other in (
        (how, "none, as trained", Measured("test_error", trained)),
        (as_stated, "none, as stated", stated),
    ):
        yield Larger(
            statement=f"the test error (points) at |S| = {smallest} is larger with BN than without norms ({setting})",
            source=Source("xbn", "sec. 4.2.1"),
            published=Published(73.02, 57.73),
            larger=bn,
            smaller=other,
            requires=required(settings, fits("bn", smallest), fits(name)),
        )
