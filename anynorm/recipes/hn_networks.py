"""hn Table 3: HN in other networks.

    anynorm reproduce hn_networks --preset desk        (data: CIFAR-10)

The paper trains MobileNetV2 ×0.35 and ×1.0, ShuffleNetV2 ×1.5 and DenseNet-121 on CIFAR-10 at batch 128. `desk` scales that down
to 2500 images at 16 × 16 pixels, three epochs at batch 32, MobileNetV2 ×0.35, ShuffleNetV2 ×0.5 and DenseNet-121 ×0.25.
That is 234 steps, in which some networks with IN, LN and GN do not leave chance: what is said of them is said of a beginning.

`paper` is the published setting, complete. `smoke` claims nothing. `desk` took 16 minutes on two cores.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anynorm import plot
from anynorm.recipes.support.claims import Claim
from anynorm.recipes.support.presets import CIFAR, SMALL, TRAIN, better, config_of, numbers, saved, there, told, trained
from anynorm.recipes.support.recipe import Recipe, Settings, grid
from anynorm.recipes.support.record import Record, Row
from anynorm.table import Table

NORMS = ["bn", "in", "ln", "gn:8", "sn", "hn", "hn:8"]
NETWORKS = [("mobilenetv2", 0.35), ("shufflenetv2", 0.5), ("densenet121", 0.25)]
PUBLISHED = [("mobilenetv2", 0.35), ("mobilenetv2", 1.0), ("shufflenetv2", 1.5), ("densenet121", 1.0)]


def named(networks: list[tuple[str, float]]) -> Settings:
    """Give names to networks of a width."""
    return {f"{model} ×{width:g}": {"model": model, "width": width} for model, width in networks}


DESK: Settings = {
    "train": TRAIN | {"data": "cifar10@16", "crop": 2, "num_train": 2500, "num_test": 2500},
    "base_batch_size": 32,
    "seeds": 3,
    "batch_size": 32,
}
DESK |= {"norms": NORMS, "networks": named(NETWORKS)}
TINY: Settings = {"train": TRAIN | SMALL, "seeds": 2, "batch_size": 16, "norms": ["bn", "ln", "hn", "hn:8"]}
PRESETS: dict[str, Settings] = {
    "smoke": DESK | TINY | {"networks": named(NETWORKS[:1])},
    "desk": DESK,
    "paper": CIFAR | {"batch_size": 128, "norms": NORMS, "networks": named(PUBLISHED)},
}
TABLE_3: dict[str, dict[str, Any]] = {
    "mobilenetv2 ×0.35": {"bn": 89.60, "in": 82.96, "ln": "failed", "gn:8": 80.40, "sn": 88.95, "hn": 89.91, "hn:8": 90.20},
    "mobilenetv2 ×1": {"bn": 90.92, "in": 87.42, "ln": 53.48, "gn:8": 84.93, "sn": 91.40, "hn": 91.49, "hn:8": 91.92},
    "shufflenetv2": {"bn": 91.40, "in": 86.83, "ln": 86.75, "gn:8": 86.99, "sn": 90.41, "hn": 92.64, "hn:8": 92.81},
    "densenet121": {"bn": 95.20, "in": 92.99, "ln": 86.69, "gn:8": 91.08, "sn": 94.39, "hn": 94.03, "hn:8": 95.11},
}


def cells(settings: Settings) -> list[Row]:
    """List the runs."""
    return grid(settings["seeds"], network=settings["networks"], norm=settings["norms"])


def measure(settings: Settings, cell: Row) -> Row:
    """Train a network."""
    network = settings["networks"][cell["network"]]
    return numbers(trained(config_of(settings, cell["norm"], settings["batch_size"], cell["seed"], **network)))


def claims(settings: Settings) -> list[Claim]:
    """List the orderings: HN, with one group or 8, is ahead of BN and SN (but in DenseNet-121), and BN of IN, LN and GN."""
    found = []
    for network in settings["networks"]:
        paper = TABLE_3[network] if network in TABLE_3 else TABLE_3[network.partition(" ")[0]]
        pairs = [("bn", "hn"), ("bn", "sn")]
        if not network.startswith("densenet"):
            pairs = [("hn:8", "bn"), ("hn", "bn"), ("hn:8", "sn"), ("hn", "sn")]
        pairs += [("bn", norm) for norm in ("in", "ln", "gn:8")]
        pairs = [pair for pair in pairs if {*pair} <= {*settings["norms"]}]
        found += [better(one, other, f"{paper[one]} and {paper[other]}", network=network) for one, other in pairs]
    return found


def tables(record: Record) -> list[Table]:
    """Give accuracies by network and norm."""
    rows = []
    for network in record.settings["networks"]:
        line = {norm: told(record.rows, network=network, norm=norm) for norm in record.settings["norms"]}
        rows.append({"network": network, **line})
    return [Table(rows, "Test accuracy in %, mean ± sd over seeds.")]


def draw(record: Record, path: Path) -> list[Path]:
    """Draw accuracies by norm."""
    things = {
        network: {norm: there(record.rows, network=network, norm=norm) for norm in record.settings["norms"]}
        for network in record.settings["networks"]
    }
    fig, _ = plot.lines(things, ylabel="test accuracy (%)", title="hn Table 3")
    return saved(fig, path)


RECIPE = Recipe("hn_networks", PRESETS, cells, measure, claims, draw, tables)
