"""Controls and claims of `sabn_generation`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from anynorm.lab.recipes.sabn.generation.results import BALANCE, closed_gap, mean_of_curve, median_ratio, real_to_first_score
from anynorm.lab.recipes.sabn.generation.settings import MANY, GenerationSettings, stages
from anynorm.lab.recipes.support.claims import OURS, RATIO, UNITS, Claim, Larger, Level, Published, Scale, Source
from anynorm.lab.recipes.support.controls import Control, Learned, Requirement
from anynorm.lab.recipes.support.quantities import Computed, Constant, Measured, mean_of
from anynorm.lab.recipes.support.runs import options_of
from anynorm.lab.tasks.generation.class_gradients import MODES, BalanceMetric
from anynorm.lab.tasks.generation.feature_networks import INCEPTION, distance_name, score_name
from anynorm.lab.training.config import Config

FID = {"SNGAN": (10.18, 8.97), "BigGAN": (8.57, 8.03), "AutoGAN": (10.51, 9.11), MANY: (79.14, 60.38)}
IS = {"SNGAN": (8.76, 8.89), "BigGAN": (8.91, 9.01), "AutoGAN": (8.43, 8.72), MANY: (16.75, 18.31)}
"""The paper's numbers with CCBN and with SaBN."""
SMALL_COSINE = 0.05
"""Differences of cosines below this are called equal."""
REAL_RATIO, CLOSED_GAP = 1.2, 25.0
"""Ratio of the class score of real images to that of the first samples, and % of the gap between them that training closes, from
which on the class score is a measure of quality."""


def controls(settings: GenerationSettings) -> list[Control]:
    """Return that generators depend on their class, and that the class score is a measure of quality, for each network."""
    name = "class accuracy of generated images (% of that of real ones)"
    result: list[Control] = [Learned(settings.min_class_accuracy, "relative_class_accuracy", name)]
    for network in settings.networks:
        runs = [{"network": network, "norm": norm} for norm in settings.norms]
        ratio, closed = _score_requirements(settings, network)
        result.append(Requirement(ratio, mean_of([Measured(real_to_first_score, run) for run in runs]), REAL_RATIO))
        result.append(Requirement(closed, mean_of([Measured(closed_gap, run) for run in runs]), CLOSED_GAP))
    return result


def _score_requirements(settings: GenerationSettings, network: str) -> tuple[str, str]:
    score = score_name(settings.features)
    needs = " (needs the last layer of Inception)" if settings.features == INCEPTION else ""
    return (
        f"{score} of real images, ratio to the first samples of {network}{needs}",
        f"rise of the {score} in training of {network} (% of the gap to real images){needs}",
    )


def claims(settings: GenerationSettings) -> list[Claim]:
    """Return the orders of Table 1, and of Figs. 2 and 3, for each network."""
    result: list[Claim] = []
    features = settings.features
    published = features == INCEPTION
    for network in settings.networks:
        fid, score = FID[network], IS[network]
        distance, score_label = distance_name(features), score_name(features)
        place = "Table 1, ImageNet" if network == MANY else "Table 1, CIFAR-10"
        source = Source("sabn", place, "" if published else f"FID {fid[0]} and {fid[1]}")
        statement = f"{distance} of CCBN is larger than of SaBN ({network})"
        claim = _compare(statement, source, "fd", network, RATIO, Published(*fid) if published else None)
        result.append(replace(claim, group=_quality(network)))
        source = Source("sabn", place, "" if published else f"IS {score[1]} and {score[0]}")
        result.append(
            Larger(
                statement=f"{score_label} of SaBN is larger than of CCBN ({network})",
                source=source,
                published=Published(score[1], score[0]) if published else None,
                scale=RATIO,
                larger=Measured("class_score", {"network": network, "norm": "SaBN"}),
                smaller=Measured("class_score", {"network": network, "norm": "CCBN"}),
                group=_quality(network),
                requires=_score_requirements(settings, network),
            )
        )
    for network, config in settings.networks.items():
        result += _figure_2(network, config)
        result += _figure_3(settings, network)
    return result


def _quality(network: str) -> str:
    """Return the group of the claims about distance and class score of the same images."""
    return f"quality of the images of {network}"


def _figure_2(network: str, config: Config) -> Iterator[Claim]:
    """Yield the orders of Fig. 2 by mode; see the module's docstring for those that `desk` cannot have."""
    single_latents = options_of(config).balance_batch_size == 1
    for mode in MODES:
        spread, cosine = Source("sabn", "Fig. 2a", "mostly have lower standard deviations"), Source("sabn", "Fig. 2b")
        if network != MANY or mode != "train":
            spread = cosine = OURS
        if single_latents or network != MANY:
            yield _spread(network, config, mode, spread)
        if single_latents:
            yield from (_cosine(network, stage, mode, cosine) for stage in stages(config))


def _spread(network: str, config: Config, mode: str, source: Source) -> Larger:
    """Return the claim that the norms of class gradients differ more with CCBN than with SaBN, in most stages."""
    quantities = [mean_of_curve(str(BalanceMetric("grad_norm_std", stage, mode))) for stage in stages(config)]
    parts = [Measured(quantity, {"network": network, "norm": norm}) for norm in ("CCBN", "SaBN") for quantity in quantities]
    return Larger(
        statement=f"the {BALANCE['grad_norm_std']} of CCBN is larger than of SaBN in most stages, {mode} mode ({network})",
        source=source,
        larger=Computed(median_ratio, parts),
        smaller=Constant(1.0),
        scale=RATIO,
        group=f"{BALANCE['grad_norm_std']}, {network}",
    )


def _cosine(network: str, stage: str, mode: str, source: Source) -> Larger:
    """Return the claim that the gradients of classes are more similar with CCBN than with SaBN in a stage."""
    quantity = mean_of_curve(str(BalanceMetric("g_inter", stage, mode)))
    return Larger(
        statement=f"the {BALANCE['g_inter']} of CCBN is larger than of SaBN in {stage}, {mode} mode ({network})",
        source=source,
        larger=Measured(quantity, {"network": network, "norm": "CCBN"}),
        smaller=Measured(quantity, {"network": network, "norm": "SaBN"}),
        scale=UNITS,
        delta=SMALL_COSINE,
        level=Level.STAGE,
        group=f"{BALANCE['g_inter']}, {network}",
    )


def _figure_3(settings: GenerationSettings, network: str) -> Iterator[Claim]:
    """Yield the orders of Fig. 3: the loss of the generator at the end, and the class score over the whole training."""
    source = Source("sabn", "Fig. 3 left", "much lower generator loss") if network == MANY else OURS
    yield _compare(f"L_G of CCBN is larger than of SaBN ({network})", source, "generator_loss", network, UNITS)
    score = mean_of_curve("class_score")
    yield Larger(
        statement=f"{score_name(settings.features)} of SaBN, mean over training, is larger than of CCBN ({network})",
        source=Source("sabn", "Fig. 3 right", "consistently outperforms the latter") if network == MANY else OURS,
        larger=Measured(score, {"network": network, "norm": "SaBN"}),
        smaller=Measured(score, {"network": network, "norm": "CCBN"}),
        scale=RATIO,
        group=_quality(network),
        requires=_score_requirements(settings, network),
    )


def _compare(
    statement: str, source: Source, column: str, network: str, scale: Scale, published: Published | None = None
) -> Larger:
    """Return the claim that a column is larger with CCBN than with SaBN."""
    larger, smaller = (Measured(column, {"network": network, "norm": norm}) for norm in ("CCBN", "SaBN"))
    return Larger(statement=statement, source=source, published=published, scale=scale, larger=larger, smaller=smaller)
