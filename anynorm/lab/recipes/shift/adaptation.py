"""ours: corruption and domain shift against norm and recalibration.

    anynorm reproduce shift_adaptation --preset desk

No table of the five papers: our hypotheses, stated before the first run, on what running statistics have to do with accuracy on
new data. A network is trained with each norm, then tested on corrupted images (Hendrycks & Dietterich 2019), or on MNIST-M
(Ganin et al. 2016) if it was trained on MNIST. Statistics are those of `anynorm.diagnostics.adaptation`: of training (source), of
unlabeled new images (recalibrated), a mixture of both, and of each test batch.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   6000 images of CIFAR-10 at 16 × 16 pixels, ResNet-10, 5 epochs; four corruptions at severities 1, 3 and 5
    paper  CIFAR-10 at full size, ResNet-18, 200 epochs, all severities; CIFAR-10-C's parameters, images made here

There is no published table to compare with: `paper` is the setting of CIFAR-10-C at full size, with four of its corruptions.
Scaled down in `desk`: small images, on which the same blur removes more, a small network and short training. So the claims are
about signs of differences.

Statistics are estimated from 1000 or from 16 images that are not among the 1000 test images. The mixture has the source weight
N / (N + n) of Schneider et al. (2020) for n images, with N = 16. MNIST-M is averaged to gray for the network of MNIST.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from anynorm import draw
from anynorm.diagnostics.adaptation import VARIANTS, Target, adaptation
from anynorm.diagnostics.corruptions import corruption_targets
from anynorm.lab.data import load_cached
from anynorm.lab.recipes.shift.adaptation_results import (
    CLEAN,
    SHIFTS,
    ShiftSettings,
    corruption_loss,
    is_corrupted,
    mean_of,
    named,
    rank_correlation,
)
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.presets import CIFAR10, SMOKE, TINY_RESNET
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import save_figure
from anynorm.lab.recipes.support.runs import make_config, run_metrics, train_run
from anynorm.lab.recipes.support.settings import Training
from anynorm.lab.tasks.run import load_run
from anynorm.lab.training.config import Config
from anynorm.lab.training.images import load_images
from anynorm.lab.training.result import Result
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table

DESK = replace(TINY_RESNET, data="cifar10@16", num_train=6000, num_test=1000, crop=2, epochs=5, batch_size=64)
DESK_DIGITS = replace(DESK, data="mnist@16", num_train=3000, epochs=3, crop=0, flip=False)
PAPER = replace(CIFAR10.config, batch_size=128)
PAPER_DIGITS = replace(PAPER, data="mnist", epochs=20, flip=False)
PRESETS = {
    "smoke": ShiftSettings(
        seeds=2,
        training=SMOKE,
        domain_training=SMOKE,
        domain="digits-faded",
        norms=("bn", "gn:8"),
        corruptions=("gaussian_noise", "contrast"),
        severities=(1, 5),
        num_unlabeled=(64, 8),
        num_labeled=64,
        eval_batch_size=32,
    ),
    "desk": ShiftSettings(
        seeds=3,
        training=Training(DESK, base_batch_size=32),
        domain_training=Training(DESK_DIGITS, base_batch_size=32),
        domain="mnist-m@16",
    ),
    "paper": ShiftSettings(
        seeds=3,
        training=Training(PAPER, base_batch_size=128),
        domain_training=Training(PAPER_DIGITS, base_batch_size=128),
        domain="mnist-m",
        severities=(1, 2, 3, 4, 5),
        num_unlabeled=(5000, 16),
        num_labeled=5000,
    ),
}
HYPOTHESIS, SCHNEIDER = "our hypothesis", "our hypothesis, after Schneider et al. 2020 on few images"


def cells(settings: ShiftSettings) -> list[Cell]:
    """Return one cell per kind of shift, norm and seed."""
    return grid(settings.seeds, shift=SHIFTS, norm=settings.norms)


def measure(settings: ShiftSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a network and return the report of `adaptation` for every target and number of unlabeled images."""
    training = settings.domain_training if cell["shift"] == "domain" else settings.training
    config = make_config(replace(training.config, norm=cell["norm"], seed=cell["seed"]), training.base_batch_size)
    metrics = run_metrics(train_run(config, runs)) | {"results": []}
    if metrics["failure"]:
        return metrics
    network = load_run(runs, config.id).network
    for count in settings.num_unlabeled:
        prior = settings.prior_samples
        targets = make_targets(settings, config, count, is_domain=cell["shift"] == "domain")
        for row in adaptation(network, targets, source_weight=prior / (prior + count)):
            numbers = {name: None if row[name] is None else round(row[name], 4) for name in ("shift", *VARIANTS)}
            metrics["results"].append({"data": row["data"], "num_unlabeled": count, **numbers})
    return metrics


def make_targets(settings: ShiftSettings, config: Config, num_unlabeled: int, *, is_domain: bool) -> Iterator[Target]:
    """Return the test images of a run as they are, followed by corrupted ones or by those of the other domain."""
    data: Any = load_images(config)
    num_labeled, size = settings.num_labeled, settings.eval_batch_size

    def split(images: Tensor, labels: Tensor) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
        """Return labeled and unlabeled batches: the first test images, and those after them."""
        if images.shape[1] != data.shape.channels:
            images = images.float().mean(1, keepdim=True)
        x = data.standardize(images[: num_labeled + num_unlabeled])
        labeled = list(zip(torch.split(x[:num_labeled], size), torch.split(labels[:num_labeled], size), strict=True))
        return labeled, list(torch.split(x[num_labeled:], size))

    labeled, unlabeled = split(*data.test)
    if not is_domain:
        standardization = {name: (getattr(data, name).flatten() / 255).tolist() for name in ("mean", "std")}
        yield from corruption_targets(
            labeled, unlabeled, **standardization, corruptions=settings.corruptions, severities=settings.severities
        )
        return
    yield Target(CLEAN, unlabeled, labeled)
    labeled, unlabeled = split(*load_cached(settings.domain, config.image_size).test)
    yield Target(settings.domain, unlabeled, labeled)


def claims(settings: ShiftSettings) -> list[Claim]:
    """Return our hypotheses."""
    adaptable = [norm for norm in settings.norms if not norm.startswith("gn")]
    domain = settings.domain
    result = []
    for data in (*settings.corruptions, domain):
        where = f"on {domain.partition('@')[0]}" if data == domain else f"under {data} (mean of severities)"
        for norm in adaptable:
            after, before = (mean_of(column, settings, norm, named(data)) for column in ("recalibrated", "source"))
            result.append(Claim(f"`{norm}`: recalibrated is more accurate than source {where}", HYPOTHESIS, after, before))
    for norm in adaptable:
        statement = f"`{norm}`: a larger estimation shift goes with a larger gain of recalibration (Spearman over corruptions)"
        result.append(Claim(statement, HYPOTHESIS, rank_correlation(settings, norm), lambda _: [0.0] * settings.seeds))
    return [*result, *_claims_of_bn(settings)]


def _claims_of_bn(settings: ShiftSettings) -> list[Claim]:
    """Return the hypotheses on kinds of statistics, and on BN against GN."""
    many, few = settings.num_unlabeled
    gn = next(norm for norm in settings.norms if norm.startswith("gn"))
    mixed, few_recalibrated = (mean_of(name, settings, "bn", is_corrupted, few=True) for name in ("mixed", "recalibrated"))
    recalibrated, per_batch = (mean_of(name, settings, "bn", is_corrupted) for name in ("recalibrated", "per_batch"))
    size = settings.eval_batch_size
    return [
        Claim(f"`bn`: mixed is more accurate than recalibrated, from {few} images", SCHNEIDER, mixed, few_recalibrated),
        Claim(
            f"`bn`: recalibrated on {many} images is more accurate than per batch of {size}", HYPOTHESIS, recalibrated, per_batch
        ),
        Claim(
            f"`bn` loses more accuracy by corruption than `{gn}`, with source statistics (points)",
            HYPOTHESIS,
            corruption_loss(settings, "bn"),
            corruption_loss(settings, gn),
        ),
        Claim(
            f"`bn` recalibrated is more accurate than `{gn}` under corruption",
            HYPOTHESIS,
            recalibrated,
            mean_of("source", settings, gn, is_corrupted),
        ),
    ]


def tables(record: RecipeRecord[ShiftSettings]) -> list[Table]:
    """Return the accuracy by norm, data and statistics, for each number of unlabeled images."""
    settings = record.settings
    names = [CLEAN, *settings.corruptions, settings.domain]
    result = []
    for few, count in zip((False, True), settings.num_unlabeled, strict=True):
        rows = []
        for name in names:
            for norm in settings.norms:
                columns = [mean_of(column, settings, norm, named(name), few=few)(record.rows) for column in VARIANTS]
                shifts = [] if norm.startswith("gn") else mean_of("shift", settings, norm, named(name), few=few)(record.rows)
                accuracies = {column: Result.of(values) for column, values in zip(VARIANTS, columns, strict=True)}
                rows.append({"data": name, "norm": norm, "shift": Result.of(shifts), **accuracies})
        finding = f"Accuracy in %, mean ± sd over seeds, mean of severities; statistics estimated from {count} images. "
        finding += "`shift`: the largest estimation shift of a norm, before adaptation."
        result.append(Table(rows, finding, formats={"shift": ".2f"} | dict.fromkeys(VARIANTS, ".1f")))
    return result


def plot(record: RecipeRecord[ShiftSettings], path: Path) -> list[Path]:
    """Plot accuracy against severity for each corruption, with source statistics (top) and recalibrated (bottom)."""
    settings = record.settings
    corruptions, severities, norms = settings.corruptions, [0, *settings.severities], settings.norms
    fig = Figure(figsize=(3.3 * len(corruptions) + 1, 6.2), layout="constrained")
    axes = fig.subplots(2, len(corruptions), sharex=True, sharey=True, squeeze=False)
    for axes_row, column in zip(axes, ("source", "recalibrated"), strict=True):
        for ax, name in zip(axes_row, corruptions, strict=True):
            by_norm: dict[str, dict[int, list[float]]] = {}
            for norm in norms:
                targets = {severity: f"{name} {severity}" if severity else CLEAN for severity in severities}
                values = {severity: mean_of(column, settings, norm, named(target)) for severity, target in targets.items()}
                by_norm[norm] = {severity: [v for v in mean(record.rows) if v is not None] for severity, mean in values.items()}
            draw.lines(by_norm, ax, title=f"{name.replace('_', ' ')}, {column}")
            ax.get_legend().remove()
    axes[0][-1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    for ax in axes[:, 0]:
        ax.set_ylabel("test accuracy (%)")
    for ax in axes[-1]:
        ax.set_xlabel("severity (0: uncorrupted)")
    return save_figure(fig, path, dpi=110)


RECIPE = Recipe("shift_adaptation", PRESETS, cells, measure, claims, plot, tables)
