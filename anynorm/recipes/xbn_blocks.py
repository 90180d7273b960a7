"""xbn Table 1 and Fig. 7: where a batch-free norm stands in a block, and in how many blocks.

    anynorm reproduce xbn_blocks --preset desk        (data: CIFAR-10)

The paper trains ResNet-50 on ImageNet, batch 256 (over how many devices it does not say: here eight), 100 epochs: GN with 64
groups in place 1, 2 or 3 of every bottleneck; GN or IN in every one, every 2nd, 4th or 8th, or everywhere. `desk` scales that
down to 7500 images of CIFAR-10 at 16 × 16 pixels, three epochs at batch 32, a bottleneck network of eight blocks
(`resnet26`), 16 groups. What is claimed is the ordering.

`paper` is the published setting as far as the lab has it: see `anynorm.recipes.support.presets.IMAGENET` (data: a folder `imagenet` with
`train` and `test`). `smoke` claims nothing. `desk` took 19 minutes on two cores.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from anynorm import plot
from anynorm.recipes.support.claims import Claim
from anynorm.recipes.support.presets import BLOCKS, IMAGENET_100, SMALL, accuracy, config_of, numbers, saved, there, told, trained
from anynorm.recipes.support.recipe import Recipe, Settings, grid
from anynorm.recipes.support.record import Record, Row
from anynorm.table import Table

DESK: Settings = {"train": BLOCKS, "base_batch_size": 32, "seeds": 3, "batch_size": 32, "gn": "gn:16", "every": [1, 2, 4, 8]}
PRESETS: dict[str, Settings] = {
    "smoke": DESK | {"seeds": 2, "every": [1, 2], "batch_size": 16, "train": BLOCKS | SMALL},
    "desk": DESK,
    "paper": DESK | IMAGENET_100 | {"gn": "gn:64"},
}


def norms(settings: Settings) -> dict[str, str]:
    """Name what is compared, with the norms as the lab places them."""
    gn = settings["gn"]
    found = {"BN": "bn", "GN": gn, "IN": "in"}
    found |= {f"P{place}": f"xbn.p{place}={gn}" for place in (1, 2, 3)}
    found |= {f"GN-D{every}": f"xbn.d{every}={gn}" for every in settings["every"] if every > 1}
    found |= {f"IN-D{every}": "xbn=in" if every == 1 else f"xbn.d{every}=in" for every in settings["every"]}
    return found


def cells(settings: Settings) -> list[Row]:
    """List the runs."""
    return grid(settings["seeds"], net=norms(settings))


def measure(settings: Settings, cell: Row) -> Row:
    """Train a network."""
    return numbers(trained(config_of(settings, norms(settings)[cell["net"]], settings["batch_size"], cell["seed"])))


def claims(settings: Settings) -> list[Claim]:
    """List the orderings of the table and the figure."""
    found = [
        _better("P1", "BN", "77.08 and 76.29"),
        _better("P2", "BN", "77.40 and 76.29"),
        _better("P3", "BN", "76.76 and 76.29"),
        _better("P2", "P1", "77.40 and 77.08"),
        _better("P2", "P3", "77.40 and 76.76"),
        _better("P2", "GN", "77.40 and 75.73 (the text has 75.63)"),
        _better("BN", "GN", "76.29 and 75.73 (the text has 75.63)"),
    ]
    for every in settings["every"][1:]:
        found.append(_better(f"GN-D{every}", "BN", "77.39 and 76.29" if every == 2 else "Fig. 7: all are better than BN"))
    for more, fewer in pairwise(["P2", *(f"GN-D{every}" for every in settings["every"][1:])]):
        found.append(_better(more, fewer, "Fig. 7: fewer XBNBlocks are worse"))
    if 4 in settings["every"]:
        found.append(_better("IN-D4", "BN", "77.19 and 76.29"))
        found.append(_better("IN-D4", "IN-D1", "77.19 and 74.99"))
    found.append(_better("BN", "IN-D1", "76.29 and 74.99"))
    return found


def _better(one: str, other: str, paper: str) -> Claim:
    return Claim(f"{one} is more accurate than {other}", paper, accuracy(net=one), accuracy(net=other))


def tables(record: Record) -> list[Table]:
    """Give the accuracy of each network."""
    rows = [
        {"network": name, "norms": norm, "accuracy": told(record.rows, net=name)} for name, norm in norms(record.settings).items()
    ]
    return [Table(rows, "Test accuracy in %, mean ± sd over seeds. P2 is GN-D1.")]


def draw(record: Record, path: Path) -> list[Path]:
    """Draw the accuracy of each network."""
    things = {"test accuracy": {name: there(record.rows, net=name) for name in norms(record.settings)}}
    fig, ax = plot.lines(things, ylabel="test accuracy (%)", title="xbn Table 1 (P1 to P3) and Fig. 7")
    ax.get_legend().remove()
    ax.get_lines()[0].set_linestyle("none")
    ax.tick_params(axis="x", rotation=45)
    return saved(fig, path)


RECIPE = Recipe("xbn_blocks", PRESETS, cells, measure, claims, draw, tables)
