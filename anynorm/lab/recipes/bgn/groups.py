"""bgn Table 1: the number of groups of BGN at a large and a small batch size.

    anynorm reproduce bgn_groups --preset desk

Paper: ResNet-50 on ImageNet, 512 to 1 groups, batch sizes 128 and 2.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   5000 images of CIFAR-10 at 8 × 8 pixels, ResNet-10, 3 epochs (`support.presets.DESK`); batch sizes 32 and 2
    paper  the published setting (`support.presets.IMAGENET`); needs a folder imagenet/ with train/ and test/

Scaled down in `desk`: 64 to 1 groups, because the smallest maps cannot be divided further. The claims are about the order only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from anynorm import draw
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.presets import DESK, IMAGENET, SMOKE
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import accuracy_of, accuracy_rows, result_table, save_figure, successful
from anynorm.lab.recipes.support.runs import train_cell
from anynorm.lab.recipes.support.settings import TrainingSettings
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table


@dataclass(frozen=True, kw_only=True)
class GroupGrid(TrainingSettings):
    """Settings of a grid of numbers of groups × batch sizes.

    Args:
        num_groups: numbers of groups of BGN, the largest first.
        batch_sizes: a large and a small batch size.
    """

    num_groups: tuple[int, ...]
    batch_sizes: tuple[int, ...]


PRESETS = {
    "smoke": GroupGrid(seeds=2, training=SMOKE, batch_sizes=(32, 2), num_groups=(16, 1)),
    "desk": GroupGrid(seeds=3, training=DESK, batch_sizes=(32, 2), num_groups=(64, 16, 4, 1)),
    "paper": GroupGrid(seeds=3, training=IMAGENET, batch_sizes=(128, 2), num_groups=(512, 256, 128, 64, 32, 16, 8, 4, 2, 1)),
}
TABLE_1 = {512: 63.968, 256: 66.000, 128: 68.160, 64: 70.064, 32: 71.856, 16: 72.832, 8: 74.928, 4: 75.120, 2: 75.968, 1: 76.096}
"""The paper's accuracy in % at batch size 2, by number of groups."""


def cells(settings: GroupGrid) -> list[Cell]:
    """Return one cell per number of groups, batch size and seed."""
    return grid(settings.seeds, num_groups=settings.num_groups, batch_size=settings.batch_sizes)


def measure(settings: GroupGrid, cell: Cell, runs: Path) -> Measurement:
    """Train a network and return its accuracy."""
    norm = f"bgn:{cell['num_groups']}"
    config = replace(settings.training.config, norm=norm, batch_size=cell["batch_size"], seed=cell["seed"])
    return train_cell(config, settings.training, runs)


def claims(settings: GroupGrid) -> list[Claim]:
    """Return the orders of the table: at the small batch size fewer groups are better, at the large one more."""
    (large, small), groups = settings.batch_sizes, settings.num_groups
    most, fewest = groups[0], groups[-1]
    pairs = [*pairwise(groups), *([(most, fewest)] if len(groups) > 2 else [])]
    result = [_more_accurate(fewer, more, small, f"{TABLE_1[fewer]:.2f} and {TABLE_1[more]:.2f}") for more, fewer in pairs]
    result.append(_more_accurate(most, fewest, large, "512 groups are best at batch 128, 1 group at batch 2"))
    return result


def _more_accurate(groups: int, other: int, batch_size: int, paper: str) -> Claim:
    statement = f"bgn:{groups} is more accurate than bgn:{other} (batch {batch_size})"
    larger, smaller = (accuracy_of(num_groups=number, batch_size=batch_size) for number in (groups, other))
    return Claim(statement, paper, larger, smaller)


def tables(record: RecipeRecord[GroupGrid]) -> list[Table]:
    """Return the accuracy by batch size and number of groups."""
    groups = {f"G = {number}": number for number in record.settings.num_groups}
    rows = accuracy_rows(record.rows, "batch_size", record.settings.batch_sizes, "num_groups", groups, label="batch")
    return [result_table(rows, "Test accuracy in % by number of groups G, mean ± sd over seeds.")]


def plot(record: RecipeRecord[GroupGrid], path: Path) -> list[Path]:
    """Plot accuracy against the number of groups."""
    groups = record.settings.num_groups
    lines = {
        f"batch {size}": {number: successful(record.rows, num_groups=number, batch_size=size) for number in groups}
        for size in record.settings.batch_sizes
    }
    fig, _ = draw.lines(lines, xlabel="number of groups", ylabel="test accuracy (%)", title="bgn Table 1")
    return save_figure(fig, path)


RECIPE = Recipe("bgn_groups", PRESETS, cells, measure, claims, plot, tables)
