"""sn Table 2: BN, GN and SN by number of devices and samples per device.

    anynorm reproduce sn_batch_size --preset desk

Paper: ResNet-50 on ImageNet in nine settings (devices, samples per device). Gradients are averaged over the devices; each device
has statistics of its own. Learning rate 0.1 at 256 samples per step, 100 epochs. With one sample per device SN has no BN, and BN
does not converge.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   1500 images of CIFAR-10 at 8 × 8 pixels, ResNet-10, 3 epochs (`support.presets.DESK`)
    paper  the published setting (`support.presets.IMAGENET_100`); needs a folder imagenet/ with train/ and test/

Scaled down in `desk`: four devices instead of eight and fewer samples per device, see `PRESETS`. The devices are simulated: a
step accumulates the gradients of as many forward passes, each with statistics of its own. (The running statistics are those of
all passes; with real devices those of the first device are kept.) The claims are about the order of the norms. BN is not trained
with one sample per device: on the last maps of 1 × 1 pixels its variance would be 0. SN is tested with moving averages, where the
paper has batch averages (`sn_average` compares them).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from anynorm import draw
from anynorm.lab.recipes.sn.device_grid import DeviceGrid
from anynorm.lab.recipes.support.claims import Claim, more_accurate
from anynorm.lab.recipes.support.presets import DESK, IMAGENET_100, SMOKE
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import (
    Values,
    accuracy_of,
    differences,
    result_over_seeds,
    result_table,
    save_figure,
    successful,
)
from anynorm.lab.recipes.support.runs import train_cell
from anynorm.lab.recipes.support.settings import Devices
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table

TABLE_2: dict[str, dict[str, float]] = {
    "(8, 32)": {"bn": 76.4, "gn": 75.9, "sn": 76.9},
    "(8, 16)": {"bn": 76.3, "gn": 75.8, "sn": 76.7},
    "(8, 8)": {"bn": 75.2, "gn": 76.0, "sn": 76.7},
    "(8, 4)": {"bn": 72.7, "gn": 75.8, "sn": 75.9},
    "(8, 2)": {"bn": 65.3, "gn": 75.9, "sn": 75.6},
    "(1, 16)": {"bn": 76.2, "gn": 75.9, "sn": 76.3},
    "(1, 32)": {"bn": 76.5, "gn": 75.8, "sn": 76.6},
    "(8, 1)": {"gn": 75.5, "sn": 75.0},
    "(1, 8)": {"bn": 75.4, "gn": 75.5, "sn": 75.9},
}
"""The paper's accuracy in % by setting (devices, samples per device)."""
PRESETS = {
    "smoke": DeviceGrid(
        seeds=2,
        training=SMOKE,
        divisions={"(8, 32)": Devices(2, 8), "(8, 2)": Devices(2, 2), "(8, 1)": Devices(2, 1)},
        gn="gn:8",
        simulate_devices=True,
    ),
    "desk": DeviceGrid(
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
    "paper": DeviceGrid(
        seeds=3,
        training=IMAGENET_100,
        divisions={name: Devices(*map(int, name.strip("()").split(", "))) for name in TABLE_2},
        gn="gn:32",
        simulate_devices=False,
    ),
}
SAME_SAMPLES = {"(8, 2)": "(1, 16)", "(8, 4)": "(1, 32)"}
"""Settings with as many samples per step on one device."""


def cells(settings: DeviceGrid) -> list[Cell]:
    """Return one cell per setting, norm and seed, without BN at one sample per device."""
    every = grid(settings.seeds, setting=settings.divisions, norm=["bn", "gn", "sn"])
    return [cell for cell in every if cell["norm"] in TABLE_2[cell["setting"]]]


def measure(settings: DeviceGrid, cell: Cell, runs: Path) -> Measurement:
    """Train a network and return its accuracy."""
    samples = settings.divisions[cell["setting"]].samples
    norm = {"bn": "bn", "gn": settings.gn, "sn": "sn" if samples > 1 else "sn-bn"}[cell["norm"]]
    return train_cell(settings.cell_config(cell, norm), settings.training, runs)


def claims(settings: DeviceGrid) -> list[Claim]:
    """Return the orders of each setting, what BN loses with small batches, and that its statistics are why."""
    result = []
    for setting in settings.divisions:
        paper = TABLE_2[setting]
        for pair in (("sn", "bn"), ("gn", "bn"), ("sn", "gn")):
            if {*pair} <= paper.keys():
                better, worse = sorted(pair, key=lambda norm: -paper[norm])
                result.append(more_accurate(better, worse, f"{paper[better]} and {paper[worse]}", setting=setting))
    large, small = "(8, 32)", "(8, 2)"
    for norm in ("gn", "sn"):
        losses = [TABLE_2[large][name] - TABLE_2[small][name] for name in ("bn", norm)]
        statement = f"`bn` loses more points from {large} to {small} than `{norm}`"
        result.append(Claim(statement, f"{losses[0]:.1f} and {losses[1]:.1f}", _loss("bn"), _loss(norm)))
    for several, one in SAME_SAMPLES.items():
        if {several, one} <= settings.divisions.keys():
            statement = f"`bn` is more accurate with the samples of a step on one device, {one}, than on several, {several}"
            accuracies = [accuracy_of(norm="bn", setting=setting) for setting in (one, several)]
            result.append(Claim(statement, f"{TABLE_2[one]['bn']} and {TABLE_2[several]['bn']}", *accuracies))
    return result


def _loss(norm: str) -> Values:
    """Return a function that computes the points of accuracy lost from 32 to 2 samples on each of eight devices."""
    return differences(*(accuracy_of(norm=norm, setting=setting) for setting in ("(8, 32)", "(8, 2)")))


def tables(record: RecipeRecord[DeviceGrid]) -> list[Table]:
    """Return the accuracy by setting and norm."""
    rows = []
    for setting, (devices, samples) in record.settings.divisions.items():
        accuracies = {
            norm: result_over_seeds(record.rows, "accuracy", norm=norm, setting=setting)
            if norm in TABLE_2[setting]
            else "not trained"
            for norm in ("bn", "gn", "sn")
        }
        rows.append({"setting": setting, "devices": devices, "samples per device": samples, **accuracies})
    return [result_table(rows, "Test accuracy in %, mean ± sd over seeds. Setting: (devices, samples per device) of the paper.")]


def plot(record: RecipeRecord[DeviceGrid], path: Path) -> list[Path]:
    """Plot the accuracy of each norm by setting."""
    lines = {
        norm: {
            f"{devices} × {samples}": successful(record.rows, norm=norm, setting=setting)
            for setting, (devices, samples) in record.settings.divisions.items()
            if norm in TABLE_2[setting]
        }
        for norm in ("sn", "gn", "bn")
    }
    fig, ax = draw.lines(lines, xlabel="devices × samples per device", ylabel="test accuracy (%)", title="sn Table 2")
    for points in ax.containers:  # a line would suggest values between two settings
        points[0].set_linestyle("none")
    return save_figure(fig, path)


RECIPE = Recipe("sn_batch_size", PRESETS, cells, measure, claims, plot, tables)
