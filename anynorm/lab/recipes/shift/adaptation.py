"""ours: corruption and domain shift against norm and recalibration.

    anynorm reproduce shift_adaptation --preset desk

No table of the five papers: our hypotheses, stated before the first run, on what running statistics have to do with accuracy on
new data. A network is trained with each norm, then tested on corrupted images (Hendrycks & Dietterich 2019), or on MNIST-M
(Ganin et al. 2016) if it was trained on MNIST. Statistics are those of `anynorm.diagnostics.adaptation`: of training (source), of
unlabeled new images (recalibrated), a mixture of both, and of each test batch.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   6000 images of CIFAR-10 at 16 × 16 pixels, ResNet-10, 5 epochs; four corruptions at severities 1, 3 and 5
    night  20 000 images of CIFAR-10 at 16 × 16 pixels, ResNet-8, 15 epochs (`support.presets.NIGHT`); with XBN blocks
    paper  CIFAR-10 at full size, ResNet-18, 200 epochs, all severities; CIFAR-10-C's parameters, images made here

`desk` is a demonstration; it decides nothing unless its controls hold. `night` has the remedy of the xbn paper too, GN or IN in
each residual block, and tests that paper's sentence that it is "more robust to distribution shift". Its numbers are subject to
the pilot until a record exists. That recalibration helps under brightness and contrast is close to a definition: the first BN
undoes an affine change of its input.

There is no published table to compare with: `paper` is the setting of CIFAR-10-C at full size, with four of its corruptions.
Scaled down in `desk`: small images, on which the same blur removes more, a small network and short training. So the claims are
about signs of differences.

Statistics are estimated from 1000 or from 16 images that are not among the 1000 test images. The mixture has the source weight
N / (N + n) of Schneider et al. (2020) for n images, with N = 16. MNIST-M is averaged to gray for the network of MNIST.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from anynorm import draw
from anynorm.diagnostics.adaptation import VARIANTS, Target, adaptation
from anynorm.diagnostics.corruptions import corruption_targets
from anynorm.diagnostics.scores import accuracy
from anynorm.lab.data import load_cached
from anynorm.lab.recipes.shift.adaptation_claims import claims
from anynorm.lab.recipes.shift.adaptation_results import (
    CLEAN,
    SHIFTS,
    ShiftSettings,
    mean_result,
    named,
    shift_with,
)
from anynorm.lab.recipes.support.controls import Control, Learned
from anynorm.lab.recipes.support.presets import CIFAR10, NIGHT, SMOKE, TINY_RESNET
from anynorm.lab.recipes.support.quantities import Measured
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import save_figure
from anynorm.lab.recipes.support.runs import make_config, run_metrics, train_run
from anynorm.lab.recipes.support.settings import Training
from anynorm.lab.tasks.run import load_run
from anynorm.lab.training.config import Config
from anynorm.lab.training.images import load_images
from anynorm.lab.training.items import group_means, pack_numbers
from anynorm.lab.training.result import Result
from anynorm.lab.training.sweep import Cell, Measurement, Row, grid
from anynorm.surgery.recalibrate import has_running_stats
from anynorm.table import Table

NUM_GROUPS = 50
"""Number of groups of test images whose accuracies are in a row, which has up to 26 results with several kinds of statistics."""
COMPARED = (("source", "recalibrated", "per_batch"), ("recalibrated", "mixed"))
"""The kinds of statistics that claims compare, with many and with few unlabeled images."""
DESK = replace(TINY_RESNET, data="cifar10@16", num_train=6000, num_test=1000, crop=2, epochs=5, batch_size=64)
DESK_DIGITS = replace(DESK, data="mnist@16", num_train=3000, epochs=3, crop=0, flip=False)
PAPER = replace(CIFAR10.config, batch_size=128)
PAPER_DIGITS = replace(PAPER, data="mnist", epochs=20, flip=False)
NIGHT_CIFAR = replace(NIGHT, config=replace(NIGHT.config, batch_size=32))
NIGHT_DIGITS = replace(
    NIGHT_CIFAR, config=replace(NIGHT_CIFAR.config, data="mnist@16", epochs=5, num_evals=5, crop=0, flip=False)
)
WITH_XBN = ("bn", "hn", "bgn", "sn", "gn:8", "xbn=gn:8", "xbn=in")
PRESETS = {
    "smoke": ShiftSettings(
        seeds=2,
        training=SMOKE,
        domain_training=SMOKE,
        domain="digits-faded",
        norms=("bn", "gn:8", "xbn=gn:8"),
        corruptions=("gaussian_noise", "contrast"),
        severities=(1, 5),
        num_unlabeled=(64, 8),
        num_labeled=64,
        eval_batch_size=32,
        min_train_accuracy=0.0,
    ),
    "desk": ShiftSettings(
        seeds=3,
        training=Training(DESK, base_batch_size=32),
        domain_training=Training(DESK_DIGITS, base_batch_size=32),
        domain="mnist-m@16",
    ),
    "night": ShiftSettings(
        seeds=8,
        training=NIGHT_CIFAR,
        domain_training=NIGHT_DIGITS,
        domain="mnist-m@16",
        norms=WITH_XBN,
        num_unlabeled=(2000, 16),
        num_labeled=5000,
        min_train_accuracy=60.0,
    ),
    "paper": ShiftSettings(
        seeds=3,
        training=Training(PAPER, base_batch_size=128),
        domain_training=Training(PAPER_DIGITS, base_batch_size=128),
        domain="mnist-m",
        severities=(1, 2, 3, 4, 5),
        num_unlabeled=(5000, 16),
        num_labeled=5000,
        norms=("bn", "hn", "bgn", "sn", "gn:8", "xbn=gn:64", "xbn=in"),
        min_train_accuracy=90.0,
    ),
}


def cells(settings: ShiftSettings) -> list[Cell]:
    """Return one cell per kind of shift, norm and seed."""
    return grid(settings.seeds, shift=SHIFTS, norm=settings.norms)


def measure(settings: ShiftSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a network and return the report of `adaptation` for every target and number of unlabeled images."""
    training = settings.domain_training if cell["shift"] == "domain" else settings.training
    config = make_config(replace(training.config, norm=cell["norm"], seed=cell["seed"]), training)
    metrics = run_metrics(train_run(config, runs)) | {"results": []}
    if metrics["failure"]:
        return metrics
    network = load_run(runs, config.id).network
    for count, compared in zip(settings.num_unlabeled, COMPARED, strict=True):
        weight = settings.prior_samples / (settings.prior_samples + count)
        targets = make_targets(settings, config, count, is_domain=cell["shift"] == "domain")
        for row, items in measure_adaptation(network, targets, weight):
            numbers = {name: None if row[name] is None else round(row[name], 4) for name in ("shift", *VARIANTS)}
            kept = {name: values for name, values in items.items() if name in compared}
            metrics["results"].append({"data": row["data"], "num_unlabeled": count, **numbers, "items": kept})
    return metrics


def measure_adaptation(
    network: nn.Module, targets: Iterator[Target], source_weight: float
) -> Iterator[tuple[Row, dict[str, list[float]]]]:
    """Yield each row of the report of `adaptation`, and the accuracies in % of groups of test images by kind of statistics.

    Args:
        network: the network.
        targets: targets with the same number of test images each.
        source_weight: see `adaptation`.
    """
    hits: list[bool] = []

    def score(output: Tensor, batch: tuple[Tensor, Tensor]) -> float | None:
        hits.extend((output.argmax(1) == batch[1]).tolist())
        return accuracy(output, batch)

    report = adaptation(network, targets, source_weight=source_weight, score=score)
    names = VARIANTS if has_running_stats(network) else VARIANTS[:1]  # in the order in which they are scored
    percent = 100.0 * np.reshape(hits, (len(report.rows), len(names), -1))
    for row, parts in zip(report, percent, strict=True):
        yield row, {name: pack_numbers(group_means(part, NUM_GROUPS)) for name, part in zip(names, parts.tolist(), strict=True)}


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


def controls(settings: ShiftSettings) -> list[Control]:
    """Return the control that networks have learned."""
    return [Learned(settings.min_train_accuracy)]


def tables(record: RecipeRecord[ShiftSettings]) -> list[Table]:
    """Return the accuracy by norm, data and statistics, for each number of unlabeled images."""
    settings = record.settings
    names, columns = [CLEAN, *settings.corruptions, settings.domain], ("shift", *VARIANTS)
    result = []
    for few, count in zip((False, True), settings.num_unlabeled, strict=True):
        rows = []
        for name, norm in product(names, settings.norms):
            shift = shift_with(name, settings)
            quantities = {column: mean_result(column, settings, norm, named(name), few=few, shift=shift) for column in columns}
            results = {column: Result.of(_values(record, quantity)) for column, quantity in quantities.items()}
            if norm.startswith("gn"):
                results["shift"] = Result.of([])
            rows.append({"data": name, "norm": norm, **results})
        finding = f"Accuracy in %, mean ± sd over seeds, mean of severities; statistics estimated from {count} images. "
        finding += "`shift`: the largest estimation shift of a norm, before adaptation."
        result.append(Table(rows, finding, formats={"shift": ".2f"} | dict.fromkeys(VARIANTS, ".1f")))
    return result


def _values(record: RecipeRecord[ShiftSettings], quantity: Measured) -> list[float | None]:
    rows = record.rows
    return [quantity.at(rows, seed) for seed in sorted(quantity.seeds(rows) or ())]


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
                means = {severity: mean_result(column, settings, norm, named(target)) for severity, target in targets.items()}
                by_norm[norm] = {
                    severity: [value for value in _values(record, mean) if value is not None] for severity, mean in means.items()
                }
            draw.lines(by_norm, ax, title=f"{name.replace('_', ' ')}, {column}")
            ax.get_legend().remove()
    axes[0][-1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    for ax in axes[:, 0]:
        ax.set_ylabel("test accuracy (%)")
    for ax in axes[-1]:
        ax.set_xlabel("severity (0: uncorrupted)")
    return save_figure(fig, path, dpi=110)


RECIPE = Recipe("shift_adaptation", PRESETS, cells, measure, claims, plot, tables, controls)
