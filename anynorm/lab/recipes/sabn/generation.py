"""sabn Table 1, Figs. 2 and 3: CCBN against SaBN in generators, and the balance of their gradients.

    anynorm reproduce sabn_generation --preset desk

Paper: SNGAN, BigGAN and AutoGAN on CIFAR-10, SNGAN on the 143 classes of dogs and cats of ImageNet at 128 × 128 pixels; FID and
IS, the best of each during training (Table 1). Gradients of classes during training: standard deviation of their norms and cosine
similarity, by stage (Fig. 2). Loss of the generator and IS over steps (Fig. 3).

    smoke  64 digits, SNGAN, 4 steps; checks that the code works and claims nothing
    desk   CIFAR-10 at 16 × 16 pixels, generators of 32 channels, 600 steps; SNGAN also with 140 classes
    paper  the published settings; needs the Inception network (`pip install 'anynorm[generation]'`) and a folder
           imagenet-dogs-cats/ with train/ and test/

Scaled down in `desk`: 600 steps of 50 000, an eighth of the width, 32 images per batch, two updates of the discriminator, so the
claims are about the order of the norms early in training. Distances use the features of a ResNet-20 trained on CIFAR-10 ("FD
(ResNet-20)", not FID) of 2000 generated and 10 000 real images; the value of a run is the mean of its last three evaluations, not
the best one. The learning rate of 4e-4 was chosen with one seed of SNGAN. The 143 classes of ImageNet are replaced by 140
clusters of CIFAR-10 (`cifar_clusters`).

Reference images are chosen at random from the training images. The record is older than this choice: its 10 000 are the first
ones of CIFAR-10, which are in random order too.

The gradient balance is measured in train mode and in eval mode, because the paper does not say which it used and the order of the
norms depends on it. The feature network of FID has no logits, so `paper` has FID and KID, but no IS.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, result_table, save_figure, select, values_of
from anynorm.lab.recipes.support.runs import make_config, options_of, run_outcome, train_run
from anynorm.lab.recipes.support.settings import Settings
from anynorm.lab.tasks.generation.class_gradients import MODES, BalanceMetric
from anynorm.lab.tasks.generation.feature_networks import distance_name, metric_suffix
from anynorm.lab.tasks.generation.options import GenerationOptions
from anynorm.lab.training.config import Config
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table

NORMS = {"CCBN": "ccbn@K", "SaBN": "sabn@K"}
BALANCE = {"grad_norm_std": "standard deviation of class gradient norms", "g_inter": "cosine of class gradients"}
"""The columns of the gradient balance that are compared, with their names in claims."""


@dataclass(frozen=True, kw_only=True)
class GenerationSettings(Settings):
    """Settings of conditional generation.

    Args:
        networks: the configuration of each network by label. Adam's learning rate does not follow the batch size.
        norms: specs by label.
        num_last_evals: number of last evaluations whose mean is the value of a run.
    """

    networks: Mapping[str, Config]
    norms: Mapping[str, str]
    num_last_evals: int

    @property
    def features(self) -> str:
        """The feature network of the distances."""
        return str(options_of(next(iter(self.networks.values()))).features)


COMMON = Config(task="generation", model="sngan", weight_decay=0.0, schedule="constant")
DESK = replace(
    COMMON, data="cifar10@16", width=0.125, num_train=9600, epochs=4, lr=4e-4, ema_decay=0.99, num_evals=6, batch_size=32,
    options=GenerationOptions(
        n_dis=2, features="resnet20", num_generated=2000, num_reference=10_000, balance_interval=100, balance_draws=2,
    ),
)  # fmt: skip
SMOKE = replace(
    DESK, data="digits", width=1 / 32, num_train=64, epochs=4, num_evals=2,
    options=GenerationOptions(
        n_dis=2, num_generated=100, num_reference=200, intra_class=False, balance_interval=2, balance_draws=1,
    ),
)  # fmt: skip
PAPER_OPTIONS = GenerationOptions(
    n_dis=5, generator_batch_size=128, features="inception", num_generated=50_000, intra_class=False, balance_interval=1000
)
PAPER = replace(COMMON, data="cifar10", epochs=320, lr=2e-4, ema_decay=0.999, num_evals=16, batch_size=64, options=PAPER_OPTIONS)
PAPER_BIGGAN = replace(
    PAPER, model="biggan", batch_size=50, epochs=500, ema_decay=0.9999,
    options=replace(PAPER_OPTIONS, n_dis=4, generator_batch_size=50, beta2=0.999),
)  # fmt: skip
PAPER_IMAGENET = replace(
    PAPER, data="stream:imagenet-dogs-cats", image_size=128, batch_size=16, epochs=194,
    options=replace(PAPER_OPTIONS, generator_batch_size=32, num_generated=20_000),
)  # fmt: skip
"""450 000 steps of five batches of 16 of the 186 000 images of 143 classes."""
PRESETS = {
    "smoke": GenerationSettings(seeds=2, networks={"SNGAN": SMOKE}, norms=NORMS, num_last_evals=3),
    "desk": GenerationSettings(
        seeds=3,
        networks={
            "SNGAN": DESK,
            "BigGAN": replace(DESK, model="biggan"),
            "AutoGAN": replace(DESK, model="autogan"),
            "SNGAN, many classes": replace(DESK, data="anynorm.lab.recipes.sabn.cifar_clusters:cifar10_140"),
        },
        norms=NORMS,
        num_last_evals=3,
    ),
    "paper": GenerationSettings(
        seeds=3,
        networks={
            "SNGAN": PAPER,
            "BigGAN": PAPER_BIGGAN,
            "AutoGAN": replace(PAPER, model="autogan"),
            "SNGAN, many classes": PAPER_IMAGENET,
        },
        norms=NORMS,
        num_last_evals=1,
    ),
}
FID = {"SNGAN": (10.18, 8.97), "BigGAN": (8.57, 8.03), "AutoGAN": (10.51, 9.11), "SNGAN, many classes": (79.14, 60.38)}
IS = {"SNGAN": (8.76, 8.89), "BigGAN": (8.91, 9.01), "AutoGAN": (8.43, 8.72), "SNGAN, many classes": (16.75, 18.31)}
"""The paper's numbers with CCBN and with SaBN."""


def cells(settings: GenerationSettings) -> list[Cell]:
    """Return one cell per network, norm and seed."""
    return grid(settings.seeds, network=settings.networks, norm=settings.norms)


def measure(settings: GenerationSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a GAN and return its distances, scores, loss and gradient balance."""
    norm = settings.norms[cell["norm"]]
    config = make_config(replace(settings.networks[cell["network"]], norm=norm, seed=cell["seed"]))
    record = train_run(config, runs)
    if not record.done:
        balance = [balance_column(column, mode) for column in BALANCE for mode in MODES]
        columns = ["fd", "best_fd", "class_score", "generator_loss", *balance]
        return {**dict.fromkeys(columns), "curves": {}, **run_outcome(record)}
    return summarize(record.curve, settings.features, settings.num_last_evals) | run_outcome(record)


def balance_column(column: str, mode: str) -> str:
    """Return the column of a row for a column of the gradient balance in one mode."""
    return f"{column} {mode}"


def summarize(curve: Sequence[Mapping[str, Any]], features: str, num_last_evals: int) -> Measurement:
    """Return the metrics of a run from its curve.

    Args:
        curve: the points of the evaluations.
        features: the feature network.
        num_last_evals: number of last evaluations whose mean is the value of the run.

    Returns:
        Values (`fd`, `best_fd`, `class_score`, `generator_loss`, and the gradient balance by mode, as means over stages and
        evaluations) and `curves`, the series of all of them with the gradient balance by stage.
    """
    names = {
        "fd": f"test_{distance_name(features)}",
        "class_score": f"test_class score{metric_suffix(features)}",
        "generator_loss": "train_generator_loss",
    }
    curves: dict[str, list[Any]] = {name: [point.get(key) for point in curve] for name, key in names.items()}
    values: Measurement = {name: _mean(curves[name][-num_last_evals:]) for name in names}
    values["best_fd"] = min(curves["fd"])
    stages = [metric for metric in map(BalanceMetric.parse, _training_metrics(curve[-1])) if metric and metric.column in BALANCE]
    curves |= {str(metric): [point.get(f"train_{metric}") for point in curve] for metric in stages}
    for column in BALANCE:
        for mode in MODES:
            series = [curves[str(metric)] for metric in stages if (metric.column, metric.mode) == (column, mode)]
            values[balance_column(column, mode)] = _mean([value for values_of_stage in series for value in values_of_stage])
    digits = {name: [None if value is None else float(f"{value:.5g}") for value in column] for name, column in curves.items()}
    return {**values, "curves": {"step": [point["step"] for point in curve], **digits}}


def _training_metrics(point: Mapping[str, Any]) -> list[str]:
    return [name.removeprefix("train_") for name in point if name.startswith("train_")]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(f"{statistics.fmean(known):.6g}") if known else None


def claims(settings: GenerationSettings) -> list[Claim]:
    """Return the order of the norms in Table 1 for each network, and in Figs. 2 and 3 for SNGAN with few and many classes."""
    result = []
    features = settings.features
    for network in settings.networks:
        paper = FID[network]
        statement = f"{distance_name(features)} of CCBN is larger than of SaBN ({network})"
        result.append(_compare(statement, f"{paper[0]} and {paper[1]} (FID)", "fd", network, "CCBN"))
        if features != "inception":
            paper = IS[network]
            statement = f"class score{metric_suffix(features)} of SaBN is larger than of CCBN ({network})"
            result.append(_compare(statement, f"{paper[1]} and {paper[0]} (IS)", "class_score", network, "SaBN"))
    for network in settings.networks:
        if not network.startswith("SNGAN"):
            continue
        for mode in MODES:
            for column, name in BALANCE.items():
                statement = f"the {name} of CCBN is larger than of SaBN in {mode} mode ({network})"
                result.append(_compare(statement, "Fig. 2", balance_column(column, mode), network, "CCBN"))
        result.append(_compare(f"L_G of CCBN is larger than of SaBN ({network})", "Fig. 3", "generator_loss", network, "CCBN"))
    return result


def _compare(statement: str, paper: str, column: str, network: str, larger: str) -> Claim:
    smaller = "SaBN" if larger == "CCBN" else "CCBN"
    return Claim(
        statement, paper, values_of(column, network=network, norm=larger), values_of(column, network=network, norm=smaller)
    )


def tables(record: RecipeRecord[GenerationSettings]) -> list[Table]:
    """Return the distances, scores and losses by network and norm."""
    features = record.settings.features
    columns = {
        "fd": distance_name(features),
        "best_fd": f"best {distance_name(features)}",
        "class_score": f"class score{metric_suffix(features)}",
        "generator_loss": "L_G",
    }
    rows = [
        {"network": network, "norm": norm}
        | {
            name: result_over_seeds(record.rows, column, network=network, norm=norm)
            for column, name in columns.items()
            if any(row[column] is not None for row in record.rows)
        }
        for network in record.settings.networks
        for norm in record.settings.norms
    ]
    finding = f"Mean of the last {record.settings.num_last_evals} evaluations; best: the best of all. Mean ± sd over seeds."
    return [result_table(rows, finding, ".3g ± .2g")]


def plot(record: RecipeRecord[GenerationSettings], path: Path) -> list[Path]:
    """Plot distance, loss and gradient balance over steps, one row per network."""
    networks = list(record.settings.networks)
    label = distance_name(record.settings.features)
    fig = Figure(figsize=(17, 2.9 * len(networks)), layout="constrained")
    axes = fig.subplots(len(networks), 4, squeeze=False)
    for network, row in zip(networks, axes, strict=True):
        draw.lines(_by_step(record, network, "fd"), row[0], xlabel="step", ylabel=label, title=f"{network}: distance")
        draw.lines(
            _by_step(record, network, "generator_loss"), row[1], xlabel="step", ylabel="L_G", title="loss of the generator"
        )
        for mode, ax in zip(MODES, row[2:], strict=True):
            labels = {"xlabel": "stage", "ylabel": "sd of class gradient norms", "title": f"gradient balance, {mode} mode"}
            draw.lines(_by_stage(record, network, mode), ax, **labels)
        for ax in row:
            ax.legend(frameon=False, fontsize="small")
    return save_figure(fig, path, dpi=90)


def _by_step(record: RecipeRecord[GenerationSettings], network: str, name: str) -> dict[str, dict[int, list[float]]]:
    result: dict[str, dict[int, list[float]]] = {}
    for norm in record.settings.norms:
        points: dict[int, list[float]] = {}
        for curves in select(record.rows, "curves", network=network, norm=norm):
            for step, value in zip(curves.get("step", ()), curves.get(name, ()), strict=True):
                points.setdefault(step, []).append(value)
        result[norm] = points
    return result


def _by_stage(record: RecipeRecord[GenerationSettings], network: str, mode: str) -> dict[str, dict[str, list[float]]]:
    """Return the standard deviation of gradient norms by norm and stage, means over steps, one per seed."""
    result: dict[str, dict[str, list[float]]] = {}
    for norm in record.settings.norms:
        stages: dict[str, list[float]] = {}
        for curves in select(record.rows, "curves", network=network, norm=norm):
            for name, values in curves.items():
                metric = BalanceMetric.parse(name)
                if metric and (metric.column, metric.mode) == ("grad_norm_std", mode):
                    known = [value for value in values if value is not None]
                    stages.setdefault(metric.stage, []).append(statistics.fmean(known))
        result[norm] = stages
    return result


RECIPE = Recipe("sabn_generation", PRESETS, cells, measure, claims, plot, tables)
