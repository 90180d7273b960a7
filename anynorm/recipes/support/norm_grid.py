"""Recipes that train a network with each of some norms at each of some batch sizes (`norms`, `batch_sizes` of their settings)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from anynorm import plot
from anynorm.recipes.support.claims import Claim
from anynorm.recipes.support.presets import config_of, numbers, saved, there, told, trained
from anynorm.recipes.support.recipe import Recipe, Settings, grid
from anynorm.recipes.support.record import Record, Row
from anynorm.table import Table


def sweep(name: str, presets: dict[str, Settings], claims: Callable[[Settings], list[Claim]], title: str) -> Recipe:
    """Make such a recipe.

    Args:
        title: of its picture.
    """
    return Recipe(name, presets, cells, measure, claims, partial(draw, title=title), tables)


def cells(settings: Settings) -> list[Row]:
    """List the runs."""
    return grid(settings["seeds"], norm=settings["norms"], batch_size=settings["batch_sizes"])


def measure(settings: Settings, cell: Row) -> Row:
    """Train a network."""
    return numbers(trained(config_of(settings, **cell)), settings.get("median", 1))


def tables(record: Record) -> list[Table]:
    """Give accuracies by norm and batch size."""
    sizes = record.settings["batch_sizes"]
    rows = [
        {"norm": norm, **{f"batch {size}": told(record.rows, norm=norm, batch_size=size) for size in sizes}}
        for norm in record.settings["norms"]
    ]
    return [Table(rows, "Test accuracy in %, mean ± sd over seeds.")]


def draw(record: Record, path: Path, title: str) -> list[Path]:
    """Draw accuracy against batch size."""
    sizes = record.settings["batch_sizes"]
    things = {norm: {size: there(record.rows, norm=norm, batch_size=size) for size in sizes} for norm in record.settings["norms"]}
    fig, _ = plot.lines(things, xlabel="samples a batch", ylabel="test accuracy (%)", title=title)
    return saved(fig, path)
