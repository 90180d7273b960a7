"""xbn Table 3: XBNBlocks with label smoothing, mixup and a cosine schedule.

    anynorm reproduce xbn_strategies --preset desk

Paper: ResNet-50 on ImageNet with BN and with XBNBlock_GN. Learning rate ÷ 10 at epochs 30, 60, 90 of 100, or a cosine schedule;
label smoothing 0.1; mixup 0.2; all three.

    smoke  20 s      64 digits, one epoch; checks that the code works and claims nothing
    desk   13 min    7500 images of CIFAR-10 at 16 × 16 pixels, ResNet-26, 3 epochs at batch 32 (`support.presets.BOTTLENECK`)
    paper  not run   the published setting (`support.presets.IMAGENET_XBN`); needs a folder imagenet/ with train/ and test/

Scaled down in `desk`: 8 bottleneck blocks and 16 groups, so the claims are about the order of the two networks.
"""

from __future__ import annotations

from pathlib import Path

from anynorm import draw
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.presets import BOTTLENECK, IMAGENET_XBN, TINY
from anynorm.lab.recipes.support.recipe import Recipe, Settings
from anynorm.lab.recipes.support.record import Record
from anynorm.lab.recipes.support.rows import accuracy_mean_sd, accuracy_of, save_figure, successful
from anynorm.lab.recipes.support.runs import train_cell
from anynorm.lab.training.sweep import Row, grid
from anynorm.table import Table

DESK: Settings = {
    "train": BOTTLENECK | {"schedule": "step-30-60-90"},
    "base_batch_size": 32,
    "seeds": 3,
    "batch_size": 32,
    "gn": "gn:16",
}
PRESETS: dict[str, Settings] = {
    "smoke": DESK | {"seeds": 2, "batch_size": 16, "train": DESK["train"] | TINY},
    "desk": DESK,
    "paper": DESK | IMAGENET_XBN,
}
NETWORKS = ("BN", "XBN")
STRATEGIES: dict[str, Settings] = {
    "LS": {"label_smoothing": 0.1},
    "MixUp": {"mixup": 0.2},
    "COS": {"schedule": "cosine"},
    "all": {"label_smoothing": 0.1, "mixup": 0.2, "schedule": "cosine"},
}
TABLE_3 = {"LS": "77.41 and 76.70", "MixUp": "77.70 and 76.75", "COS": "77.60 and 76.72", "all": "78.22 and 77.16"}
"""The paper's accuracies in % of XBNBlock_GN and of BN."""


def cells(settings: Settings) -> list[Row]:
    """Return one cell per strategy, network and seed."""
    return grid(settings["seeds"], strategy=STRATEGIES, network=NETWORKS)


def measure(settings: Settings, cell: Row, runs: Path) -> Row:
    """Train a network with a strategy and return its accuracy."""
    norm = "bn" if cell["network"] == "BN" else f"xbn={settings['gn']}"
    return train_cell(settings, runs, norm, settings["batch_size"], cell["seed"], **STRATEGIES[cell["strategy"]])


def claims(_: Settings) -> list[Claim]:
    """Return one claim per strategy."""
    return [
        Claim(
            f"XBNBlock_GN is more accurate than BN ({strategy})",
            paper,
            accuracy_of(strategy=strategy, network="XBN"),
            accuracy_of(strategy=strategy, network="BN"),
        )
        for strategy, paper in TABLE_3.items()
    ]


def tables(record: Record) -> list[Table]:
    """Return the accuracy by network and strategy."""
    rows = [
        {"network": network, **{name: accuracy_mean_sd(record.rows, strategy=name, network=network) for name in STRATEGIES}}
        for network in NETWORKS
    ]
    return [Table(rows, "Test accuracy in %, mean ± sd over seeds. LS: label smoothing; COS: cosine schedule.")]


def plot(record: Record, path: Path) -> list[Path]:
    """Plot the accuracy of both networks by strategy."""
    lines = {
        network: {name: successful(record.rows, strategy=name, network=network) for name in STRATEGIES} for network in NETWORKS
    }
    fig, _ = draw.lines(lines, xlabel="training strategy", ylabel="test accuracy (%)", title="xbn Table 3")
    return save_figure(fig, path)


RECIPE = Recipe("xbn_strategies", PRESETS, cells, measure, claims, plot, tables)
