"""bgn Table 1: the number of groups of BGN at a large and a small batch size.

    anynorm reproduce bgn_groups --preset desk

Paper: ResNet-50 on ImageNet, 512 to 1 groups, batch sizes 128 and 2.

    smoke  20 s      64 digits, one epoch; checks that the code works and claims nothing
    desk   7 min     5000 images of CIFAR-10 at 8 × 8 pixels, ResNet-10, 3 epochs (`support.presets.DESK`); batch sizes 32 and 2
    paper  not run   the published setting (`support.presets.IMAGENET`); needs a folder imagenet/ with train/ and test/

Scaled down in `desk`: 64 to 1 groups, because the smallest maps cannot be divided further. The claims are about the order only.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from anynorm import draw
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.presets import DESK, IMAGENET, SMOKE
from anynorm.lab.recipes.support.recipe import Recipe, Settings
from anynorm.lab.recipes.support.record import Record
from anynorm.lab.recipes.support.rows import accuracy_mean_sd, accuracy_of, save_figure, successful
from anynorm.lab.recipes.support.runs import train_cell
from anynorm.lab.training.sweep import Row, grid
from anynorm.table import Table

PRESETS: dict[str, Settings] = {
    "smoke": SMOKE | {"batch_sizes": [32, 2], "num_groups": [16, 1]},
    "desk": DESK | {"batch_sizes": [32, 2], "num_groups": [64, 16, 4, 1]},
    "paper": IMAGENET | {"batch_sizes": [128, 2], "num_groups": [512, 256, 128, 64, 32, 16, 8, 4, 2, 1]},
}
TABLE_1 = {512: 63.968, 256: 66.000, 128: 68.160, 64: 70.064, 32: 71.856, 16: 72.832, 8: 74.928, 4: 75.120, 2: 75.968, 1: 76.096}
"""The paper's accuracy in % at batch size 2, by number of groups."""


def cells(settings: Settings) -> list[Row]:
    """Return one cell per number of groups, batch size and seed."""
    return grid(settings["seeds"], num_groups=settings["num_groups"], batch_size=settings["batch_sizes"])


def measure(settings: Settings, cell: Row, runs: Path) -> Row:
    """Train a network and return its accuracy."""
    return train_cell(settings, runs, f"bgn:{cell['num_groups']}", cell["batch_size"], cell["seed"])


def claims(settings: Settings) -> list[Claim]:
    """Return the orders of the table: at the small batch size fewer groups are better, at the large one more."""
    (large, small), groups = settings["batch_sizes"], settings["num_groups"]
    most, fewest = groups[0], groups[-1]
    pairs = [*pairwise(groups), *([(most, fewest)] if len(groups) > 2 else [])]
    result = [_more_accurate(fewer, more, small, f"{TABLE_1[fewer]:.2f} and {TABLE_1[more]:.2f}") for more, fewer in pairs]
    result.append(_more_accurate(most, fewest, large, "512 groups are best at batch 128, 1 group at batch 2"))
    return result


def _more_accurate(groups: int, other: int, batch_size: int, paper: str) -> Claim:
    statement = f"bgn:{groups} is more accurate than bgn:{other} (batch {batch_size})"
    larger, smaller = (accuracy_of(num_groups=number, batch_size=batch_size) for number in (groups, other))
    return Claim(statement, paper, larger, smaller)


def tables(record: Record) -> list[Table]:
    """Return the accuracy by batch size and number of groups."""
    groups = record.settings["num_groups"]
    rows = [
        {
            "batch": size,
            **{f"G = {number}": accuracy_mean_sd(record.rows, num_groups=number, batch_size=size) for number in groups},
        }
        for size in record.settings["batch_sizes"]
    ]
    return [Table(rows, "Test accuracy in % by number of groups G, mean ± sd over seeds.")]


def plot(record: Record, path: Path) -> list[Path]:
    """Plot accuracy against the number of groups."""
    groups = record.settings["num_groups"]
    lines = {
        f"batch {size}": {number: successful(record.rows, num_groups=number, batch_size=size) for number in groups}
        for size in record.settings["batch_sizes"]
    }
    fig, _ = draw.lines(lines, xlabel="number of groups", ylabel="test accuracy (%)", title="bgn Table 1")
    return save_figure(fig, path)


RECIPE = Recipe("bgn_groups", PRESETS, cells, measure, claims, plot, tables)
