"""sn Fig. 5: SN tested with moving averages and with batch averages.

    anynorm reproduce sn_average --preset desk

Paper: ResNet-50 on ImageNet; BN with a moving average, SN with a moving and with a batch average. For the batch average the
parameters are frozen, training batches are fed, and their statistics are averaged.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   5000 images of CIFAR-10 at 8 × 8 pixels, ResNet-10 (`support.presets.DESK`), after epochs 1 and 3 of 3
    paper  sn's setting (`support.presets.IMAGENET_100`); needs a folder imagenet/ with train/ and test/

Scaled down in `desk`: batch sizes 32 and 2, and 50 averaged batches. Two estimators are measured, see `anynorm.recalibrate`:
"averaged" (mean of the batch statistics) and "pooled" (statistics of all samples together).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from matplotlib.figure import Figure

import anynorm
from anynorm import draw
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.presets import DESK, IMAGENET_100, SMOKE
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, save_figure, successful, values_of
from anynorm.lab.recipes.support.runs import make_config, run_metrics, train_run
from anynorm.lab.recipes.support.settings import TrainingSettings
from anynorm.lab.tasks.run import load_run
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.lab.training.trainer import Trainer
from anynorm.table import Table


@dataclass(frozen=True, kw_only=True)
class AverageSettings(TrainingSettings):
    """Settings of tests with moving and with batch averages.

    Args:
        batch_sizes: numbers of samples per forward pass and device.
        eval_epochs: epochs after which networks are tested.
        num_batches: number of training batches over which statistics are averaged.
    """

    batch_sizes: tuple[int, ...]
    eval_epochs: tuple[int, ...]
    num_batches: int


PRESETS = {
    "smoke": AverageSettings(seeds=2, training=SMOKE, batch_sizes=(32,), eval_epochs=(1,), num_batches=2),
    "desk": AverageSettings(seeds=3, training=DESK, batch_sizes=(32, 2), eval_epochs=(1, 3), num_batches=50),
    "paper": AverageSettings(
        seeds=3, training=IMAGENET_100, batch_sizes=(32,), eval_epochs=(1, 10, 30, 60, 90, 100), num_batches=200
    ),
}
NORMS = ("bn", "sn")
ESTIMATORS = ("averaged", "pooled")


def cells(settings: AverageSettings) -> list[Cell]:
    """Return one cell per norm, batch size, epoch after which the network is tested, and seed."""
    return grid(settings.seeds, norm=NORMS, batch_size=settings.batch_sizes, epoch=settings.eval_epochs)


def measure(settings: AverageSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a network and return its accuracy with the moving average and with each estimator of the batch average."""
    # a complete run has no stop_epoch, so that other recipes can share it
    stop_epoch = cell["epoch"] if cell["epoch"] < settings.training.config.epochs else None
    config = replace(settings.training.config, norm=cell["norm"], batch_size=cell["batch_size"], seed=cell["seed"])
    config = make_config(replace(config, stop_epoch=stop_epoch), settings.training.base_batch_size)
    metrics = run_metrics(train_run(config, runs)) | dict.fromkeys(ESTIMATORS)
    if not metrics["failure"]:
        trainer = Trainer(replace(config, devices=1), load_run(runs, config.id))
        task = trainer.task
        for estimator in ESTIMATORS:
            batches = (task.training_batch(step)[0] for step in range(min(settings.num_batches, trainer.end)))
            anynorm.recalibrate(task.network, batches, estimator=estimator)
            with torch.no_grad():
                metrics[estimator] = round(100 - task.eval().evaluate()["error"], 3)
    return metrics


def claims(settings: AverageSettings) -> list[Claim]:
    """Return what the figure shows at each batch size and epoch."""
    result = []
    for size in settings.batch_sizes:
        for epoch in settings.eval_epochs:
            cell = {"batch_size": size, "epoch": epoch}
            condition = f"(batch {size}, after epoch {epoch})"
            sn_batch, sn_moving = values_of("averaged", norm="sn", **cell), values_of("accuracy", norm="sn", **cell)
            is_last = epoch == max(settings.eval_epochs)
            paper = "76.92 and 76.89 at the end, batch 32" if is_last else "the batch average is ahead early in training"
            statement = "SN with the batch average is more accurate than"
            result.append(Claim(f"{statement} with the moving average {condition}", paper, sn_batch, sn_moving))
            bn = values_of("accuracy", norm="bn", **cell)
            result.append(Claim(f"{statement} BN {condition}", "76.92 and 76.4 at the end, batch 32", sn_batch, bn))
    return result


def tables(record: RecipeRecord[AverageSettings]) -> list[Table]:
    """Return the accuracy by norm, batch size, epoch and estimator."""
    rows = []
    for size in record.settings.batch_sizes:
        for epoch in record.settings.eval_epochs:
            for norm in NORMS:
                cell = {"norm": norm, "batch_size": size, "epoch": epoch}
                moving, averaged, pooled = (result_over_seeds(record.rows, name, **cell) for name in ("accuracy", *ESTIMATORS))
                row = {"norm": norm, "batch": size, "after epoch": epoch}
                rows.append(row | {"moving average": moving, "batch average": averaged, "pooled": pooled})
    return [Table(rows, "Test accuracy in %, mean ± sd over seeds.")]


def plot(record: RecipeRecord[AverageSettings], path: Path) -> list[Path]:
    """Plot the accuracy by estimator over the epochs."""
    sizes, epochs = record.settings.batch_sizes, record.settings.eval_epochs
    curves = {"BN": ("bn", "accuracy"), "SN, moving average": ("sn", "accuracy"), "SN, batch average": ("sn", "averaged")}
    fig = Figure(figsize=(5.5 * len(sizes), 4), layout="constrained")
    for ax, size in zip(fig.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        lines = {
            label: {epoch: successful(record.rows, column, norm=norm, batch_size=size, epoch=epoch) for epoch in epochs}
            for label, (norm, column) in curves.items()
        }
        draw.lines(lines, ax, xlabel="after epoch", ylabel="test accuracy (%)", title=f"sn Fig. 5, batch {size}")
    return save_figure(fig, path)


RECIPE = Recipe("sn_average", PRESETS, cells, measure, claims, plot, tables)
