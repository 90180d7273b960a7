"""sn Table 2, Figs. 1b and 6: BN, GN and SN by number of devices and samples per device.

    anynorm reproduce sn_batch_size --preset desk

Paper: ResNet-50 on ImageNet in nine settings (devices, samples per device). Gradients are averaged over the devices; each device
has statistics of its own. Learning rate 0.1 at 256 samples per step, 100 epochs. With one sample per device SN has no BN, and BN
does not converge.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   1500 images of CIFAR-10 at 8 × 8 pixels, ResNet-10, 3 epochs (`support.presets.DESK`): a demonstration; decides nothing
           unless its controls hold
    night  20 000 images of CIFAR-10 at 16 × 16 pixels, ResNet-8, 15 epochs (`support.presets.NIGHT`); it shares runs with
           `bgn_batch_size`
    paper  the published setting (`sn.training.IMAGENET_SN`); needs a folder imagenet/ with train/ and test/

The devices are simulated in `desk` and `night`: a step accumulates the gradients of as many forward passes, each with statistics
of its own. (The running statistics are those of all passes; with real devices those of the first device are kept.) The claims are
about the order of the norms. In `desk` there are four devices and fewer samples per device, BN is not trained with one sample per
device (on its last maps of 1 × 1 pixels the variance would be 0), and SN is tested with moving averages. In `night` the settings
(8, n) have the paper's n samples per statistic and 32 samples per step, so that all have the same number of steps; (1, 16) has 16
samples per step, twice as many steps, and half of the learning rate. As in the paper, SN is tested with batch averages in `night`
(over all training samples) and in `paper` (over 50 000 and over all; the latter are the accuracies), BN with moving averages.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.sn.batch_average import IMAGENET_SAMPLES, averaged_accuracies, averaged_column
from anynorm.lab.recipes.sn.batch_size_claims import BN_FAILS, GN_NEAR_BN, LARGE, NORMS, SMALL, TABLE_2, BatchSizeSettings, claims
from anynorm.lab.recipes.sn.training import IMAGENET_SN, LEARNED_NIGHT, LEARNED_PAPER
from anynorm.lab.recipes.support.controls import Control, Learned, Requirement
from anynorm.lab.recipes.support.presets import DESK, NIGHT, SMOKE
from anynorm.lab.recipes.support.quantities import accuracy_of
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, result_table, save_figure, successful
from anynorm.lab.recipes.support.runs import make_config, train_cell
from anynorm.lab.recipes.support.settings import Devices
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table

PRESETS = {
    "smoke": BatchSizeSettings(
        seeds=2,
        training=SMOKE,
        divisions={"(8, 32)": Devices(2, 8), "(8, 2)": Devices(2, 2), "(8, 1)": Devices(2, 1)},
        gn="gn:8",
        simulate_devices=True,
        averaged_samples=(64,),
        min_train_accuracy=0.0,
    ),
    "desk": BatchSizeSettings(
        seeds=3,
        training=replace(DESK, config=replace(DESK.config, num_train=1500, num_test=2000)),
        divisions={
            "(8, 32)": Devices(4, 8),
            "(8, 2)": Devices(4, 2),
            "(1, 16)": Devices(1, 8),
            "(8, 1)": Devices(4, 1),
            "(1, 8)": Devices(1, 4),
        },
        gn="gn:8",
        simulate_devices=True,
    ),
    "night": BatchSizeSettings(
        seeds=8,
        training=replace(NIGHT, samples_per_step=None),  # divisions have the samples per step
        divisions={f"(8, {samples})": Devices(32 // samples, samples) for samples in (32, 16, 4, 2, 1)}
        | {"(1, 16)": Devices(1, 16)},
        gn="gn:8",
        simulate_devices=True,
        bn_with_one_sample=True,
        averaged_samples=(10_000,),
        min_train_accuracy=LEARNED_NIGHT,
    ),
    "paper": BatchSizeSettings(
        seeds=3,
        training=IMAGENET_SN,
        divisions={name: Devices(*map(int, name.strip("()").split(", "))) for name in TABLE_2},
        gn="gn:32",
        simulate_devices=False,
        bn_with_one_sample=True,
        averaged_samples=(50_000, IMAGENET_SAMPLES),
        min_train_accuracy=LEARNED_PAPER,
    ),
}


def cells(settings: BatchSizeSettings) -> list[Cell]:
    """Return one cell per setting, norm and seed; BN with one sample per device only if the settings say so."""
    every = grid(settings.seeds, setting=settings.divisions, norm=NORMS)
    return [cell for cell in every if settings.bn_with_one_sample or cell["norm"] in TABLE_2[cell["setting"]]]


def measure(settings: BatchSizeSettings, cell: Cell, runs: Path) -> Measurement:
    """Train a network and return its accuracy; that of SN with batch averages, if the settings say so."""
    samples = settings.divisions[cell["setting"]].samples
    norm = {"bn": "bn", "gn": settings.gn, "sn": "sn" if samples > 1 else "sn-bn"}[cell["norm"]]
    config = settings.cell_config(cell, norm)
    row = train_cell(config, settings.training, runs)
    if norm == "sn" and settings.averaged_samples and not row["failure"]:
        config = make_config(config, settings.training)
        averaged = averaged_accuracies(config, runs, settings.averaged_samples)
        last = averaged_column(settings.averaged_samples[-1])
        row |= averaged | {"moving_accuracy": row["accuracy"], "accuracy": averaged[last], "hits": averaged["items"][last]}
    return row


def controls(settings: BatchSizeSettings) -> list[Control]:
    """Return when a network has learned, that BN loses accuracy at two samples per device, and that GN is not far behind BN."""
    lost = accuracy_of(norm="bn", setting=LARGE) - accuracy_of(norm="bn", setting=SMALL)
    lead = accuracy_of(norm="gn", setting=LARGE) - accuracy_of(norm="bn", setting=LARGE)
    smoke = not settings.min_train_accuracy
    return [
        Learned(settings.min_train_accuracy),
        Requirement(BN_FAILS, lost, -100.0 if smoke else 3.0),
        Requirement(GN_NEAR_BN, lead, -100.0 if smoke else -3.5),
    ]


def tables(record: RecipeRecord[BatchSizeSettings]) -> list[Table]:
    """Return the accuracy by setting and norm, and training accuracies."""
    measured = {(cell["setting"], cell["norm"]) for cell in cells(record.settings)}
    rows = []
    for setting, (devices, samples) in record.settings.divisions.items():
        accuracies = {
            f"{norm}{title}": result_over_seeds(record.rows, column, norm=norm, setting=setting)
            if (setting, norm) in measured
            else "not trained"
            for title, column in (("", "accuracy"), (", training", "train_accuracy"))
            for norm in NORMS
        }
        rows.append({"setting": setting, "devices": devices, "samples per device": samples, **accuracies})
    return [result_table(rows, "Accuracy in %, mean ± sd over seeds. Setting: (devices, samples per device) of the paper.")]


def plot(record: RecipeRecord[BatchSizeSettings], path: Path) -> list[Path]:
    """Plot the accuracy of each norm by setting with the line of the ideal BN, and SN's validation curves by setting."""
    divisions = record.settings.divisions
    has_curves = record.settings.training.config.num_evals > 1
    fig = Figure(figsize=(11 if has_curves else 6.4, 4.2), layout="constrained")
    axes = fig.subplots(1, 1 + has_curves, squeeze=False)[0]
    lines = {
        norm: {
            f"{devices} × {samples}": values
            for setting, (devices, samples) in divisions.items()
            if (values := successful(record.rows, norm=norm, setting=setting))
        }
        for norm in ("sn", "gn", "bn")
    }
    draw.lines(lines, axes[0], xlabel="devices × samples per device", ylabel="test accuracy (%)", title="sn Table 2, Fig. 1b")
    for points in axes[0].containers:  # a line would suggest values between two settings
        points[0].set_linestyle("none")
    if ideal := successful(record.rows, norm="bn", setting=LARGE):
        axes[0].axhline(statistics.fmean(ideal), color="0.6", lw=1, ls="--")
        axes[0].annotate("ideal BN", (0.99, statistics.fmean(ideal)), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    if has_curves:
        _draw_curves(axes[1], record)
    return save_figure(fig, path)


def _draw_curves(ax: Any, record: RecipeRecord[BatchSizeSettings]) -> None:
    """Draw the validation accuracy of SN against epochs for each setting, means over seeds."""
    for setting in record.settings.divisions:
        curves = [row["curve"] for row in record.rows if row["norm"] == "sn" and row["setting"] == setting and not row["failure"]]
        if curves:
            means = [100 - statistics.fmean(curve[k][2] for curve in curves) for k in range(len(curves[0]))]
            ax.plot([point[0] for point in curves[0]], means, label=setting)
    ax.set(xlabel="epoch", ylabel="test accuracy (%), moving averages", title="sn Fig. 6a: SN by setting")
    ax.legend(frameon=False, fontsize=8)


RECIPE = Recipe("sn_batch_size", PRESETS, cells, measure, claims, plot, tables, controls)
