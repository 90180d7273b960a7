"""sabn Table 1, Figs. 2 to 4: CCBN against SaBN in generators, and the balance of their gradients.

    anynorm reproduce sabn_generation --preset night

Paper: SNGAN, BigGAN and AutoGAN on CIFAR-10, SNGAN on the 143 classes of dogs and cats of ImageNet at 128 × 128 pixels; FID and
IS, the best of each during training (Table 1). For the latter: gradients of classes during training, standard deviation of their
norms and cosine similarity, by stage (Fig. 2); loss of the generator and IS over steps (Fig. 3); samples (Fig. 4).

    smoke  64 digits, SNGAN, 4 steps; checks that the code works and claims nothing
    desk   CIFAR-10 at 16 × 16 pixels, generators of 32 channels, 600 steps; SNGAN also with 140 classes; a demonstration, which
           decides nothing unless its controls hold
    night  SNGAN of `desk` with 10 and 140 classes, 4000 steps, 10 000 generated images; subject to a pilot until its record
           exists
    paper  the published settings; needs the Inception network (`pip install 'anynorm[generation]'`) and a folder
           imagenet-dogs-cats/ with train/ and test/. IS needs the last layer of Inception, see `feature_networks.LOGITS_FILE`

Controls: a generator depends on its class (class accuracy of its images at least 60 % of that of real ones, by a classifier of
real images); the class score is a measure of quality (that of real images is higher than that of the first samples, and it rises
in training). Without the first, CCBN and SaBN have nothing to do.

Scaled down in `desk` and `night`: steps, an eighth of the width, 32 images per batch, two updates of the discriminator. Distances
use the features of a ResNet trained on CIFAR-10 ("FD (ResNet-20)", not FID), and are compared as ratios; the value of a run is
the mean of its last three evaluations, not the best one. The learning rate of 4e-4 was chosen with one seed of SNGAN. The 143
classes of ImageNet are replaced by 140 clusters of CIFAR-10 (`cifar_clusters`), made by the features of ResNet-20; `night`
measures distances by ResNet-32. Figs. 2 and 3 are about SNGAN on ImageNet: the claims about other networks and data are ours.

Eq. 4 takes the cosine of the gradients of classes for single latent vectors, and then the mean. In `desk`, gradients were
averaged over a batch before the cosine, and of the 140 classes only the first ten were compared, all clusters of airplanes. So
`desk` makes no claim about the cosine, nor about the gradients of many classes. The balance is measured in train mode and in eval
mode, because the paper does not say which it used and the order of the norms depends on it.

Reference images are chosen at random from the training images. The record of `desk` is older than this choice: its 10 000 are the
first ones of CIFAR-10, which are in random order too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from anynorm.lab.recipes.sabn.generation_plots import draw_balance, draw_curves, draw_samples
from anynorm.lab.recipes.sabn.generation_results import (
    BALANCE,
    change_in_training,
    failed_results,
    mean_of_curve,
    real_to_first_score,
    summarize,
)
from anynorm.lab.recipes.sabn.generation_settings import MANY, PRESETS, GenerationSettings, stages
from anynorm.lab.recipes.support.claims import OURS, RATIO, UNITS, Claim, Larger, Level, Published, Scale, Source
from anynorm.lab.recipes.support.controls import Control, Learned, Requirement
from anynorm.lab.recipes.support.pictures import last_artifact
from anynorm.lab.recipes.support.quantities import Measured, mean_of
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, result_table
from anynorm.lab.recipes.support.runs import make_config, options_of, run_outcome, train_run
from anynorm.lab.tasks.generation.class_gradients import MODES, BalanceMetric
from anynorm.lab.tasks.generation.feature_networks import INCEPTION, distance_name, score_name
from anynorm.lab.training.config import Config
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table

FID = {"SNGAN": (10.18, 8.97), "BigGAN": (8.57, 8.03), "AutoGAN": (10.51, 9.11), MANY: (79.14, 60.38)}
IS = {"SNGAN": (8.76, 8.89), "BigGAN": (8.91, 9.01), "AutoGAN": (8.43, 8.72), MANY: (16.75, 18.31)}
"""The paper's numbers with CCBN and with SaBN."""
SMALL_COSINE = 0.05
"""Differences of cosines below this are called equal."""


def cells(settings: GenerationSettings) -> list[Cell]:
    """Return one cell per network, norm and seed."""
    return grid(settings.seeds, network=settings.networks, norm=settings.norms)


def measure(settings: GenerationSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a GAN and return its distances, scores, loss and gradient balance, and samples of the first seed."""
    norm = settings.norms[cell["norm"]]
    config = make_config(replace(settings.networks[cell["network"]], norm=norm, seed=cell["seed"]))
    record = train_run(config, runs)
    if not record.done:
        return {**failed_results(), "picture": "", **run_outcome(record)}
    picture = last_artifact(runs, config.id, "samples/") if cell["seed"] == 0 else ""
    return {**summarize(record.curve, settings.features, settings.num_last_evals), "picture": picture, **run_outcome(record)}


def controls(settings: GenerationSettings) -> list[Control]:
    """Return that generators depend on their class, and that the class score is a measure of quality, for each network."""
    name = "class accuracy of generated images (% of that of real ones)"
    result: list[Control] = [Learned(settings.min_class_accuracy, "relative_class_accuracy", name)]
    for network in settings.networks:
        runs = [{"network": network, "norm": norm} for norm in settings.norms]
        ratio, rise = _score_requirements(settings, network)
        result.append(Requirement(ratio, mean_of([Measured(real_to_first_score, run) for run in runs]), 1.2))
        result.append(Requirement(rise, mean_of([Measured(change_in_training("class_score"), run) for run in runs]), 0.0))
    return result


def _score_requirements(settings: GenerationSettings, network: str) -> tuple[str, str]:
    score = score_name(settings.features)
    needs = " (needs the last layer of Inception)" if settings.features == INCEPTION else ""
    return (
        f"{score} of real images, ratio to the first samples of {network}{needs}",
        f"rise of the {score} in training of {network}{needs}",
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
        result.append(_compare(statement, source, "fd", network, RATIO, Published(*fid) if published else None))
        source = Source("sabn", place, "" if published else f"IS {score[1]} and {score[0]}")
        result.append(
            Larger(
                statement=f"{score_label} of SaBN is larger than of CCBN ({network})",
                source=source,
                published=Published(score[1], score[0]) if published else None,
                scale=RATIO,
                larger=Measured("class_score", {"network": network, "norm": "SaBN"}),
                smaller=Measured("class_score", {"network": network, "norm": "CCBN"}),
                group=f"class score, {network}",
                requires=_score_requirements(settings, network),
            )
        )
    for network, config in settings.networks.items():
        result += _figure_2(network, config)
        result += _figure_3(settings, network)
    return result


def _figure_2(network: str, config: Config) -> Iterator[Claim]:
    """Yield the orders of Fig. 2 by mode and stage; see the module's docstring for those that `desk` cannot have."""
    single_latents = options_of(config).balance_batch_size == 1
    for column, name in BALANCE.items():
        if not single_latents and (column == "g_inter" or network == MANY):
            continue
        place = "Fig. 2a" if column == "grad_norm_std" else "Fig. 2b"
        for mode in MODES:
            for stage in stages(config):
                quantity = mean_of_curve(str(BalanceMetric(column, stage, mode)))
                yield Larger(
                    statement=f"the {name} of CCBN is larger than of SaBN in {stage}, {mode} mode ({network})",
                    source=Source("sabn", place) if network == MANY else OURS,
                    larger=Measured(quantity, {"network": network, "norm": "CCBN"}),
                    smaller=Measured(quantity, {"network": network, "norm": "SaBN"}),
                    scale=RATIO if column == "grad_norm_std" else UNITS,
                    delta=None if column == "grad_norm_std" else SMALL_COSINE,
                    level=Level.STAGE,
                    group=f"{name}, {mode} mode, {network}",
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
        group=f"class score, {network}",
        requires=_score_requirements(settings, network),
    )


def _compare(
    statement: str, source: Source, column: str, network: str, scale: Scale, published: Published | None = None
) -> Larger:
    """Return the claim that a column is larger with CCBN than with SaBN."""
    larger, smaller = (Measured(column, {"network": network, "norm": norm}) for norm in ("CCBN", "SaBN"))
    return Larger(statement=statement, source=source, published=published, scale=scale, larger=larger, smaller=smaller)


def tables(record: RecipeRecord[GenerationSettings]) -> list[Table]:
    """Return the distances, scores, losses and class accuracies by network and norm."""
    features = record.settings.features
    columns = {
        "fd": distance_name(features),
        "best_fd": f"best {distance_name(features)}",
        "class_score": score_name(features),
        "real_class_score": f"{score_name(features)}, real images",
        "generator_loss": "L_G",
        "class_accuracy": "class accuracy, %",
        "real_class_accuracy": "class accuracy of real images, %",
    }
    rows = [
        {"network": network, "norm": norm}
        | {
            name: result_over_seeds(record.rows, column, network=network, norm=norm)
            for column, name in columns.items()
            if any(row.get(column) is not None for row in record.rows)
        }
        for network in record.settings.networks
        for norm in record.settings.norms
    ]
    finding = f"Mean of the last {record.settings.num_last_evals} evaluations; best: the best of all. Mean ± sd over seeds."
    return [result_table(rows, finding, ".3g ± .2g")]


def plot(record: RecipeRecord[GenerationSettings], path: Path) -> list[Path]:
    """Plot distance, loss and class score over steps, the gradient balance that claims are about, and samples."""
    networks, features = list(record.settings.networks), record.settings.features
    names = {"fd": distance_name(features), "generator_loss": "L_G", "class_score": score_name(features)}
    single = {network: options_of(config).balance_batch_size == 1 for network, config in record.settings.networks.items()}
    compared = [network for network in networks if single[network] or network != MANY]
    columns = [column for column in BALANCE if all(single.values()) or column != "g_inter"]
    pictures = draw_curves(record, path, networks, names) + draw_balance(record, path, compared, columns)
    return pictures + draw_samples(record, path, networks, list(record.settings.norms))


RECIPE = Recipe("sabn_generation", PRESETS, cells, measure, claims, plot, tables, controls)
