"""xbn Table 3: XBNBlocks under label smoothing, mixup, a cosine schedule, and all of them.

    anynorm reproduce xbn_strategies --preset desk        (data: CIFAR-10)

The paper trains ResNet-50 on ImageNet with BN and with XBNBlock_GN: steps (÷10 at 30, 60, 90 of 100 epochs), label smoothing
0.1, mixup 0.2, cosine. `desk` scales that down as in xbn_blocks: 7500 images of CIFAR-10 at 16 × 16 pixels, three epochs at
batch 32, a bottleneck network of eight blocks, 16 groups.

`paper` is the published setting as far as the lab has it: see `anynorm.recipes.support.presets.IMAGENET` (data: a folder `imagenet` with
`train` and `test`). `smoke` claims nothing. `desk` took 13 minutes on two cores.
"""

from __future__ import annotations

from pathlib import Path

from anynorm import plot
from anynorm.recipes.support.claims import Claim
from anynorm.recipes.support.presets import BLOCKS, IMAGENET_100, SMALL, accuracy, config_of, numbers, saved, there, told, trained
from anynorm.recipes.support.recipe import Recipe, Settings, grid
from anynorm.recipes.support.record import Record, Row
from anynorm.table import Table

DESK: Settings = {
    "train": BLOCKS | {"schedule": "step-30-60-90"},
    "base_batch_size": 32,
    "seeds": 3,
    "batch_size": 32,
    "gn": "gn:16",
}
PRESETS: dict[str, Settings] = {
    "smoke": DESK | {"seeds": 2, "batch_size": 16, "train": DESK["train"] | SMALL},
    "desk": DESK,
    "paper": DESK | IMAGENET_100 | {"gn": "gn:64"},
}
STRATEGIES: dict[str, Settings] = {"LS": {"label_smoothing": 0.1}, "MixUp": {"mixup": 0.2}, "COS": {"schedule": "cosine"}}
STRATEGIES["all"] = STRATEGIES["LS"] | STRATEGIES["MixUp"] | STRATEGIES["COS"]
PAPER = {"LS": "77.41 and 76.70", "MixUp": "77.70 and 76.75", "COS": "77.60 and 76.72", "all": "78.22 and 77.16"}


def cells(settings: Settings) -> list[Row]:
    """List the runs."""
    return grid(settings["seeds"], strategy=STRATEGIES, net=["BN", "XBN"])


def measure(settings: Settings, cell: Row) -> Row:
    """Train a network by a strategy."""
    norm = "bn" if cell["net"] == "BN" else f"xbn={settings['gn']}"
    return numbers(trained(config_of(settings, norm, settings["batch_size"], cell["seed"], **STRATEGIES[cell["strategy"]])))


def claims(_: Settings) -> list[Claim]:
    """List the rows of the table."""
    found = []
    for strategy in STRATEGIES:
        one, other = (accuracy(strategy=strategy, net=net) for net in ("XBN", "BN"))
        found.append(Claim(f"XBNBlock_GN is more accurate than BN ({strategy})", PAPER[strategy], one, other))
    return found


def tables(record: Record) -> list[Table]:
    """Give accuracies by network and strategy."""
    rows = [{"network": net, **{name: told(record.rows, strategy=name, net=net) for name in STRATEGIES}} for net in ("BN", "XBN")]
    return [Table(rows, "Test accuracy in %, mean ± sd over seeds.")]


def draw(record: Record, path: Path) -> list[Path]:
    """Draw accuracies by strategy."""
    things = {net: {name: there(record.rows, strategy=name, net=net) for name in STRATEGIES} for net in ("BN", "XBN")}
    fig, _ = plot.lines(things, ylabel="test accuracy (%)", title="xbn Table 3")
    return saved(fig, path)


RECIPE = Recipe("xbn_strategies", PRESETS, cells, measure, claims, draw, tables)
