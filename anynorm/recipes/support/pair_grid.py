"""Recipes that train a network with each pair of a mean and a deviation (`cuts`, `batch_sizes` of their settings)."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from anynorm import plot
from anynorm.recipes.support.claims import Claim
from anynorm.recipes.support.presets import accuracy, config_of, numbers, saved, there, told, trained
from anynorm.recipes.support.recipe import Recipe, Settings, grid
from anynorm.recipes.support.record import Record, Row
from anynorm.table import Table


def pairs(name: str, presets: dict[str, Settings], claims: Callable[[Settings], list[Claim]]) -> Recipe:
    """Make such a recipe."""
    return Recipe(name, presets, cells, measure, claims, draw, tables)


def cells(settings: Settings) -> list[Row]:
    """List the runs."""
    return grid(settings["seeds"], mean=settings["cuts"], std=settings["cuts"], batch_size=settings["batch_sizes"])


def measure(settings: Settings, cell: Row) -> Row:
    """Train a network with the mean of one norm and the deviation of another."""
    norm = cell["mean"] if cell["mean"] == cell["std"] else f"{cell['mean']}/{cell['std']}"
    return numbers(trained(config_of(settings, norm, cell["batch_size"], cell["seed"])))


def better(one: tuple[str, str], other: tuple[str, str], size: int, paper: str) -> Claim:
    """Claim that a pair is more accurate than another."""
    says = f"({', '.join(one)}) is more accurate than ({', '.join(other)}) (batch {size})"
    larger, smaller = (accuracy(mean=mean, std=std, batch_size=size) for mean, std in (one, other))
    return Claim(says, paper, larger, smaller)


def tables(record: Record) -> list[Table]:
    """Give the grid of each batch size: columns are means, rows deviations, as printed in the paper."""
    cuts = record.settings["cuts"]
    found = []
    for size in record.settings["batch_sizes"]:
        rows = [
            {"std \\ mean": std, **{mean: told(record.rows, mean=mean, std=std, batch_size=size) for mean in cuts}}
            for std in cuts
        ]
        found.append(Table(rows, f"Test accuracy in %, batch {size}, mean ± sd over seeds; columns: mean, rows: deviation."))
    return found


def draw(record: Record, path: Path) -> list[Path]:
    """Draw the grids."""
    cuts, sizes = record.settings["cuts"], record.settings["batch_sizes"]
    fig = Figure(figsize=(6 * len(sizes), 5), layout="constrained")
    for ax, size in zip(fig.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        cell = [[there(record.rows, mean=mean, std=std, batch_size=size) for mean in cuts] for std in cuts]
        table = [[statistics.fmean(values) if values else float("nan") for values in line] for line in cell]
        words = {"xlabel": "mean of", "ylabel": "deviation of", "title": f"batch {size}"}
        plot.grid(table, (cuts, cuts), ax, label="test accuracy (%)", **words)
    return saved(fig, path)
