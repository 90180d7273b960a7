"""sn Fig. 5: SN tested with moving averages and with batch averages.

    anynorm reproduce sn_average --preset desk

Paper: ResNet-50 on ImageNet; BN with a moving average, SN with a moving and with a batch average. For the batch average the
parameters are frozen, training batches are fed, and their statistics are averaged, over 50 000 samples or over all.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   5000 images of CIFAR-10 at 8 × 8 pixels, ResNet-10 (`support.presets.DESK`), after epochs 1 and 3 of 3: a
           demonstration; decides nothing unless its controls hold
    night  20 000 images of CIFAR-10 at 16 × 16 pixels, ResNet-8, 15 epochs, 32 samples per step (`support.presets.NIGHT`)
    paper  the published setting (`sn.training.IMAGENET_SN`); needs a folder imagenet/ with train/ and test/

In `desk`, networks are trained until an epoch and tested with 50 averaged batches; the columns are "averaged" (mean of the batch
statistics with unbiased variances) and "pooled" (statistics of all samples together), see `anynorm.recalibrate`. In `night` and
`paper` a run is tested with both averages in every epoch, the batch average over `curve_samples` samples with the paper's biased
variances; at the end also over other numbers of samples. Scaled down in `night`: 1000 samples in the place of 50 000.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from matplotlib.figure import Figure

import anynorm
from anynorm import draw
from anynorm.lab.recipes.sn.average_claims import curve_claims, epoch_claims
from anynorm.lab.recipes.sn.batch_average import IMAGENET_SAMPLES, averaged_accuracies, averaged_column
from anynorm.lab.recipes.sn.training import IMAGENET_SN, LEARNED_DESK, LEARNED_NIGHT, LEARNED_PAPER
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.controls import Control, Learned
from anynorm.lab.recipes.support.presets import DESK, NIGHT, SMOKE
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, save_figure, successful
from anynorm.lab.recipes.support.runs import make_config, run_metrics, train_run
from anynorm.lab.recipes.support.settings import TrainingSettings
from anynorm.lab.tasks.classification.options import ClassificationOptions
from anynorm.lab.tasks.classification.task import BATCH_AVERAGE
from anynorm.lab.tasks.run import load_run
from anynorm.lab.training.config import Config
from anynorm.lab.training.items import pack_items
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.lab.training.trainer import Trainer
from anynorm.table import Table


@dataclass(frozen=True, kw_only=True)
class AverageSettings(TrainingSettings):
    """Settings of tests with moving and with batch averages.

    Args:
        batch_sizes: numbers of samples per forward pass and device.
        eval_epochs: epochs until which separate networks are trained; empty to test one network at every evaluation.
        num_batches: number of training batches over which statistics are averaged, with `eval_epochs`.
        curve_samples: number of training samples over which statistics are averaged at every evaluation, without `eval_epochs`.
        averaged_samples: numbers of training samples over which they are averaged at the end, without `eval_epochs`.
        min_train_accuracy: training accuracy in % from which on a network has learned.
    """

    batch_sizes: tuple[int, ...]
    eval_epochs: tuple[int, ...] = ()
    num_batches: int = 0
    curve_samples: int = 0
    averaged_samples: tuple[int, ...] = ()
    min_train_accuracy: float = LEARNED_DESK


PRESETS = {
    "smoke": AverageSettings(
        seeds=2,
        training=replace(SMOKE, config=replace(SMOKE.config, epochs=2, num_evals=2)),
        batch_sizes=(32,),
        curve_samples=32,
        averaged_samples=(32, 64),
        min_train_accuracy=0.0,
    ),
    "desk": AverageSettings(seeds=3, training=DESK, batch_sizes=(32, 2), eval_epochs=(1, 3), num_batches=50),
    "night": AverageSettings(
        seeds=8,
        training=NIGHT,
        batch_sizes=(32, 2),
        curve_samples=1000,
        averaged_samples=(1000, 10_000),
        min_train_accuracy=LEARNED_NIGHT,
    ),
    "paper": AverageSettings(
        seeds=3,
        training=IMAGENET_SN,
        batch_sizes=(32,),
        curve_samples=50_000,
        averaged_samples=(50_000, IMAGENET_SAMPLES),
        min_train_accuracy=LEARNED_PAPER,
    ),
}
NORMS = ("bn", "sn")
ESTIMATORS = ("averaged", "pooled")


def cells(settings: AverageSettings) -> list[Cell]:
    """Return one cell per norm, batch size, epoch after which a network is tested (if it is not a curve), and seed."""
    if settings.eval_epochs:
        return grid(settings.seeds, norm=NORMS, batch_size=settings.batch_sizes, epoch=settings.eval_epochs)
    return grid(settings.seeds, norm=NORMS, batch_size=settings.batch_sizes)


def measure(settings: AverageSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a network and return its accuracy with the moving average and with batch averages."""
    config = replace(settings.training.config, norm=cell["norm"], batch_size=cell["batch_size"], seed=cell["seed"])
    if "epoch" in cell:
        return _measure_epoch(settings, replace(config, stop_epoch=cell["epoch"]), runs)
    config = replace(config, options=ClassificationOptions(averaged_samples=settings.curve_samples))
    config = make_config(config, settings.training)
    record = train_run(config, runs)
    averages: Measurement = dict.fromkeys(map(averaged_column, settings.averaged_samples))
    if record.done:
        averages = averaged_accuracies(config, runs, settings.averaged_samples)
    return run_metrics(record) | curve_metrics(record) | averages


def curve_metrics(record: RunRecord) -> Measurement:
    """Return what a run has of its curves with both averages.

    Returns:
        The accuracy with batch averages at the end, `averaged`; and for the moving and the batch average, the curve of the
        accuracy, its mean (larger for faster convergence), and the mean absolute change between evaluations (smaller for more
        stable convergence). None for a failed run.
    """
    result: Measurement = {"averaged": None}
    for name, metric in (("moving", "test_error"), ("batch", f"test_error, {BATCH_AVERAGE}")):
        curve = [round(100 - point[metric], 3) for point in record.curve] if record.done else []
        result |= {
            f"{name}_curve": curve,
            f"{name}_area": round(statistics.fmean(curve), 4) if curve else None,
            f"{name}_change": round(mean_change(curve), 4) if curve else None,
        }
    return result | {"averaged": result["batch_curve"][-1] if record.done else None}


def mean_change(curve: list[float]) -> float:
    """Return the mean absolute difference of successive values; 0 for a single value."""
    return statistics.fmean(abs(b - a) for a, b in itertools.pairwise(curve)) if len(curve) > 1 else 0.0


def _measure_epoch(settings: AverageSettings, config: Config, runs: Path) -> Measurement:
    """Train a network until an epoch and return its accuracy with the moving average and with each estimator."""
    if config.stop_epoch == config.epochs:  # a complete run has no stop_epoch, so that other recipes can share it
        config = replace(config, stop_epoch=None)
    config = make_config(config, settings.training)
    metrics: Measurement = run_metrics(train_run(config, runs)) | dict.fromkeys(ESTIMATORS) | {"items": {}}
    if not metrics["failure"]:
        trainer = Trainer(replace(config, devices=1), load_run(runs, config.id))
        task = trainer.task
        for estimator in ESTIMATORS:
            batches = (task.training_batch(step)[0] for step in range(min(settings.num_batches, trainer.end)))
            anynorm.recalibrate(task.network, batches, estimator=estimator)
            with torch.no_grad():
                metrics[estimator] = round(100 - task.eval().evaluate()["error"], 3)
            metrics["items"][estimator] = pack_items(task.items["error"])
    return metrics


def controls(settings: AverageSettings) -> list[Control]:
    """Return when a network has learned."""
    return [Learned(settings.min_train_accuracy)]


def claims(settings: AverageSettings) -> list[Claim]:
    """Return what figure and text say at each batch size."""
    if settings.eval_epochs:
        return epoch_claims(settings.batch_sizes, settings.eval_epochs)
    return curve_claims(settings.batch_sizes, settings.averaged_samples)


def tables(record: RecipeRecord[AverageSettings]) -> list[Table]:
    """Return the accuracy by norm, batch size, epoch and estimator."""
    settings = record.settings
    columns = {"moving average": "accuracy", "batch average": "averaged", "pooled": "pooled"}
    if not settings.eval_epochs:
        columns.pop("pooled")
        columns |= {f"batch average, {count} samples": averaged_column(count) for count in settings.averaged_samples}
        columns |= {f"{name} average, mean of the curve": f"{name}_area" for name in ("moving", "batch")}
        columns |= {f"{name} average, change per evaluation": f"{name}_change" for name in ("moving", "batch")}
    rows = []
    for size in settings.batch_sizes:
        for epoch in settings.eval_epochs or (settings.training.config.epochs,):
            for norm in NORMS:
                cell = {"norm": norm, "batch_size": size} | ({"epoch": epoch} if settings.eval_epochs else {})
                results = {title: result_over_seeds(record.rows, column, **cell) for title, column in columns.items()}
                rows.append({"norm": norm, "batch": size, "after epoch": epoch} | results)
    return [Table(rows, "Test accuracy in %, mean ± sd over seeds.")]


def plot(record: RecipeRecord[AverageSettings], path: Path) -> list[Path]:
    """Plot the accuracy with each average over the epochs."""
    sizes = record.settings.batch_sizes
    fig = Figure(figsize=(5.5 * len(sizes), 4), layout="constrained")
    for ax, size in zip(fig.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        title = f"sn Fig. 5, batch {size}"
        draw.lines(_lines(record, size), ax, xlabel="after epoch", ylabel="test accuracy (%)", title=title)
    return save_figure(fig, path)


def _lines(record: RecipeRecord[AverageSettings], size: int) -> dict[str, dict[float, list[float]]]:
    """Return the accuracies of all seeds by norm and average, and by epoch."""
    moving, batch = ("accuracy", "averaged") if record.settings.eval_epochs else ("moving_curve", "batch_curve")
    curves = {"BN": ("bn", moving), "SN, moving average": ("sn", moving), "SN, batch average": ("sn", batch)}
    lines: dict[str, dict[float, list[float]]] = {}
    for label, (norm, column) in curves.items():
        cell = {"norm": norm, "batch_size": size}
        if record.settings.eval_epochs:
            epochs = record.settings.eval_epochs
            lines[label] = {epoch: successful(record.rows, column, **cell, epoch=epoch) for epoch in epochs}
        else:
            rows = [row for row in record.rows if cell.items() <= row.items() and not row["failure"]]
            times = [point[0] for point in rows[0]["curve"]] if rows else []
            lines[label] = {time: [row[column][k] for row in rows] for k, time in enumerate(times)}
    return lines


RECIPE = Recipe("sn_average", PRESETS, cells, measure, claims, plot, tables, controls)
