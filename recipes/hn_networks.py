"""hn Table 3: HN in other networks.

    anynorm reproduce hn_networks --preset desk        (data: CIFAR-10)

The paper trains MobileNetV2 ×0.35 and ×1.0, ShuffleNetV2 ×1.5 and DenseNet-121 on CIFAR-10 at batch 128. `desk` scales that down to
5000 images at 16 × 16 pixels, three epochs at batch 32, MobileNetV2 ×0.35, ShuffleNetV2 ×0.5 and DenseNet-121 ×0.25.

`paper` is the published setting, complete. `smoke` claims nothing.
"""

from __future__ import annotations

from pathlib import Path

from anynorm import plot
from anynorm.lab.claims import Claim
from anynorm.lab.recipe import Recipe, Settings, grid
from anynorm.lab.record import Record, Row
from anynorm.lab.trained import CIFAR, SMALL, TRAIN, better, config_of, numbers, saved, there, told, trained
from anynorm.report import Rows

NORMS = ["bn", "in", "ln", "gn:8", "sn", "hn", "hn:8"]
DESK: Settings = {
    "train": TRAIN | {"data": "cifar10@16", "crop": 2},
    "per": 32,
    "seeds": 3,
    "batch_size": 32,
    "norms": NORMS,
    "networks": {"mobilenetv2": 0.35, "shufflenetv2": 0.5, "densenet121": 0.25},
}
PRESETS: dict[str, Settings] = {
    "smoke": DESK
    | {
        "train": TRAIN | SMALL,
        "seeds": 2,
        "norms": ["bn", "hn", "hn:8", "ln"],
        "networks": {"mobilenetv2": 0.35},
        "batch_size": 16,
    },
    "desk": DESK,
    "paper": CIFAR
    | {
        "batch_size": 128,
        "norms": NORMS,
        "networks": {"mobilenetv2": 0.35, "mobilenetv2 ": 1.0, "shufflenetv2": 1.5, "densenet121": 1.0},
    },
}
TABLE_3 = {
    "mobilenetv2": {"bn": 89.60, "hn": 89.91, "hn:8": 90.20, "ln": "failed", "in": 82.96, "gn:8": 80.40, "sn": 88.95},
    "mobilenetv2 ": {"bn": 90.92, "hn": 91.49, "hn:8": 91.92, "ln": 53.48, "in": 87.42, "gn:8": 84.93, "sn": 91.40},
    "shufflenetv2": {"bn": 91.40, "hn": 92.64, "hn:8": 92.81, "ln": 86.75, "in": 86.83, "gn:8": 86.99, "sn": 90.41},
    "densenet121": {"bn": 95.20, "hn": 94.03, "hn:8": 95.11, "ln": 86.69, "in": 92.99, "gn:8": 91.08, "sn": 94.39},
}


def cells(settings: Settings) -> list[Row]:
    """List the runs."""
    return grid(settings["seeds"], network=settings["networks"], norm=settings["norms"])


def measure(settings: Settings, cell: Row) -> Row:
    """Train a network."""
    width = settings["networks"][cell["network"]]
    others = {"model": cell["network"].strip(), "width": width}
    return numbers(trained(config_of(settings, cell["norm"], settings["batch_size"], cell["seed"], **others)))


def claims(settings: Settings) -> list[Claim]:
    """List the orderings: HN with 8 groups and HN are ahead of BN (but in DenseNet-121), BN of IN, LN and GN."""
    found = []
    for network in settings["networks"]:
        pairs = [("hn:8", "bn"), ("hn", "bn")] if "dense" not in network else [("bn", "hn")]
        pairs += [("bn", norm) for norm in ("in", "ln", "gn:8") if norm in settings["norms"]]
        for one, other in pairs:
            numbers_of = TABLE_3[network]
            found.append(better(one, other, f"{numbers_of[one]} and {numbers_of[other]}", network=network.strip()))
    return found


def tables(record: Record) -> list[Rows]:
    """Give accuracies by network and norm."""
    rows = [
        {
            "network": f"{name.strip()} ×{width}",
            **{norm: told(record.rows, network=name, norm=norm) for norm in record.settings["norms"]},
        }
        for name, width in record.settings["networks"].items()
    ]
    return [Rows(rows, "Test accuracy in %, mean ± sd over seeds.")]


def draw(record: Record, path: Path) -> list[Path]:
    """Draw accuracies by norm."""
    things = {
        name: {norm: there(record.rows, network=name, norm=norm) for norm in record.settings["norms"]}
        for name in record.settings["networks"]
    }
    fig, _ = plot.lines(things, ylabel="test accuracy (%)", title="hn Table 3")  # type: ignore[arg-type]
    return saved(fig, path)


RECIPE = Recipe("hn_networks", PRESETS, cells, measure, claims, draw, tables)
