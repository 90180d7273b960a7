"""Recipes that train one network with each norm (setting `norms`) at each batch size (setting `batch_sizes`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from anynorm import draw
from anynorm.lab.recipes.support.claims import Claim, more_accurate
from anynorm.lab.recipes.support.recipe import Recipe, Settings
from anynorm.lab.recipes.support.record import Record
from anynorm.lab.recipes.support.rows import accuracy_mean_sd, save_figure, successful
from anynorm.lab.recipes.support.runs import train_cell
from anynorm.lab.training.sweep import Row, grid
from anynorm.table import Table


def norm_grid_recipe(name: str, presets: dict[str, Settings], claims: Callable[[Settings], list[Claim]], title: str) -> Recipe:
    """Return a recipe that measures a grid of norms × batch sizes.

    Args:
        name: the name of the recipe's module.
        presets: settings by preset.
        claims: a function that returns the claims that can be tested with given settings.
        title: the title of the plot.
    """
    return Recipe(name, presets, cells, measure, claims, partial(plot, title=title), tables)


def cells(settings: Settings) -> list[Row]:
    """Return one cell per norm, batch size and seed."""
    return grid(settings["seeds"], norm=settings["norms"], batch_size=settings["batch_sizes"])


def measure(settings: Settings, cell: Row, runs: Path) -> Row:
    """Train the network of a cell and return its accuracy."""
    return train_cell(settings, runs, **cell)


def order_claims(settings: Settings, pairs: list[tuple[str, str]], accuracies: dict[str, float], batch_size: int) -> list[Claim]:
    """Return one claim per pair of norms: the first is more accurate than the second.

    Args:
        settings: settings with `norms`; pairs with a norm that is not among them are left out.
        pairs: pairs of keys of `accuracies`.
        accuracies: accuracies in the paper in %, by norm. "gn:" stands for GN with any number of groups.
        batch_size: the batch size of both norms.
    """
    specs = {norm.partition(":")[0] + ":" * (":" in norm): norm for norm in settings["norms"]}
    return [
        more_accurate(specs[a], specs[b], f"{accuracies[a]:.2f} and {accuracies[b]:.2f}", batch_size=batch_size)
        for a, b in pairs
        if {a, b} <= specs.keys()
    ]


def tables(record: Record) -> list[Table]:
    """Return the table of accuracies by norm and batch size."""
    sizes = record.settings["batch_sizes"]
    rows = [
        {"norm": norm, **{f"batch {size}": accuracy_mean_sd(record.rows, norm=norm, batch_size=size) for size in sizes}}
        for norm in record.settings["norms"]
    ]
    return [Table(rows, "Test accuracy in %, mean ± sd over seeds.")]


def plot(record: Record, path: Path, title: str) -> list[Path]:
    """Plot accuracy against batch size."""
    sizes, norms = record.settings["batch_sizes"], record.settings["norms"]
    lines = {norm: {size: successful(record.rows, norm=norm, batch_size=size) for size in sizes} for norm in norms}
    fig, _ = draw.lines(lines, xlabel="samples per batch", ylabel="test accuracy (%)", title=title)
    return save_figure(fig, path)
