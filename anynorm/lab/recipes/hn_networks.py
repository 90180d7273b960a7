"""hn Table 3: HN in MobileNetV2, ShuffleNetV2 and DenseNet-121.

    anynorm reproduce hn_networks --preset desk

Paper: MobileNetV2 ×0.35 and ×1.0, ShuffleNetV2 ×1.5 and DenseNet-121 on CIFAR-10, batch size 128.

    smoke  20 s      64 digits, one epoch, MobileNetV2; checks that the code works and claims nothing
    desk   16 min    2500 images of CIFAR-10 at 16 × 16 pixels, 3 epochs at batch size 32; narrower networks
    paper  not run   the published setting, complete (`support.presets.CIFAR10`)

Scaled down in `desk`: MobileNetV2 ×0.35, ShuffleNetV2 ×0.5 and DenseNet-121 ×0.25, trained for 234 steps. After so few steps some
networks with IN, LN and GN are still at chance, so the claims are about the start of training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anynorm import draw
from anynorm.lab.recipes.support.claims import Claim, more_accurate
from anynorm.lab.recipes.support.presets import CIFAR10, TINY, TRAIN
from anynorm.lab.recipes.support.recipe import Recipe, Settings
from anynorm.lab.recipes.support.record import Record
from anynorm.lab.recipes.support.rows import accuracy_mean_sd, save_figure, successful
from anynorm.lab.recipes.support.runs import train_cell
from anynorm.lab.training.sweep import Row, grid
from anynorm.table import Table

NORMS = ["bn", "in", "ln", "gn:8", "sn", "hn", "hn:8"]


def networks(*models: tuple[str, float]) -> Settings:
    """Return models and width multipliers by their label, such as "mobilenetv2 ×0.35"."""
    return {f"{model} ×{width:g}": {"model": model, "width": width} for model, width in models}


DESK: Settings = {
    "train": TRAIN | {"data": "cifar10@16", "crop": 2, "num_train": 2500, "num_test": 2500},
    "base_batch_size": 32,
    "seeds": 3,
    "batch_size": 32,
    "norms": NORMS,
    "networks": networks(("mobilenetv2", 0.35), ("shufflenetv2", 0.5), ("densenet121", 0.25)),
}
SMOKE: Settings = DESK | {
    "train": TRAIN | TINY,
    "seeds": 2,
    "batch_size": 16,
    "norms": ["bn", "ln", "hn", "hn:8"],
    "networks": networks(("mobilenetv2", 0.35)),
}
PAPER: Settings = CIFAR10 | {
    "batch_size": 128,
    "norms": NORMS,
    "networks": networks(("mobilenetv2", 0.35), ("mobilenetv2", 1.0), ("shufflenetv2", 1.5), ("densenet121", 1.0)),
}
TABLE_3: dict[str, dict[str, Any]] = {
    "mobilenetv2 ×0.35": {"bn": 89.60, "in": 82.96, "ln": "failed", "gn:8": 80.40, "sn": 88.95, "hn": 89.91, "hn:8": 90.20},
    "mobilenetv2 ×1": {"bn": 90.92, "in": 87.42, "ln": 53.48, "gn:8": 84.93, "sn": 91.40, "hn": 91.49, "hn:8": 91.92},
    "shufflenetv2": {"bn": 91.40, "in": 86.83, "ln": 86.75, "gn:8": 86.99, "sn": 90.41, "hn": 92.64, "hn:8": 92.81},
    "densenet121": {"bn": 95.20, "in": 92.99, "ln": 86.69, "gn:8": 91.08, "sn": 94.39, "hn": 94.03, "hn:8": 95.11},
}
"""The paper's accuracy in %. ShuffleNetV2 and DenseNet-121 have one width, whatever width a preset has."""


def cells(settings: Settings) -> list[Row]:
    """Return one cell per network, norm and seed."""
    return grid(settings["seeds"], network=settings["networks"], norm=settings["norms"])


def measure(settings: Settings, cell: Row, runs: Path) -> Row:
    """Train a network and return its accuracy."""
    network = settings["networks"][cell["network"]]
    return train_cell(settings, runs, cell["norm"], settings["batch_size"], cell["seed"], **network)


def claims(settings: Settings) -> list[Claim]:
    """Return the orders of the table: HN beats BN and SN except in DenseNet-121, and BN beats IN, LN and GN."""
    result = []
    for network in settings["networks"]:
        paper = TABLE_3[network] if network in TABLE_3 else TABLE_3[network.partition(" ")[0]]
        if network.startswith("densenet"):
            pairs = [("bn", "hn"), ("bn", "sn")]
        else:
            pairs = [("hn:8", "bn"), ("hn", "bn"), ("hn:8", "sn"), ("hn", "sn")]
        pairs += [("bn", "in"), ("bn", "ln"), ("bn", "gn:8")]
        measured = [pair for pair in pairs if {*pair} <= {*settings["norms"]}]
        result += [more_accurate(a, b, f"{paper[a]} and {paper[b]}", network=network) for a, b in measured]
    return result


def tables(record: Record) -> list[Table]:
    """Return the accuracy by network and norm."""
    rows = []
    for network in record.settings["networks"]:
        accuracies = {norm: accuracy_mean_sd(record.rows, network=network, norm=norm) for norm in record.settings["norms"]}
        rows.append({"network": network, **accuracies})
    return [Table(rows, "Test accuracy in %, mean ± sd over seeds.")]


def plot(record: Record, path: Path) -> list[Path]:
    """Plot the accuracy of each network by norm."""
    lines = {
        network: {norm: successful(record.rows, network=network, norm=norm) for norm in record.settings["norms"]}
        for network in record.settings["networks"]
    }
    fig, _ = draw.lines(lines, xlabel="norm", ylabel="test accuracy (%)", title="hn Table 3")
    return save_figure(fig, path)


RECIPE = Recipe("hn_networks", {"smoke": SMOKE, "desk": DESK, "paper": PAPER}, cells, measure, claims, plot, tables)
