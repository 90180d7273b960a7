"""Recipes that train one network with each of several norms at each of several batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from anynorm import draw
from anynorm.lab.recipes.support.claims import Claim, more_accurate
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import accuracy_rows, result_table, save_figure, successful
from anynorm.lab.recipes.support.runs import train_cell
from anynorm.lab.recipes.support.settings import TrainingSettings
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table


@dataclass(frozen=True, kw_only=True)
class NormGrid(TrainingSettings):
    """Settings of a grid of norms × batch sizes.

    Args:
        norms: specs of the norms.
        batch_sizes: numbers of samples per forward pass and device, the largest first.
    """

    norms: tuple[str, ...]
    batch_sizes: tuple[int, ...]


def norm_grid_recipe(
    name: str, presets: Mapping[str, NormGrid], claims: Callable[[NormGrid], list[Claim]], title: str
) -> Recipe[NormGrid]:
    """Return a recipe that measures a grid of norms × batch sizes.

    Args:
        name: the name of the recipe's module.
        presets: settings by preset.
        claims: a function that returns the claims that can be tested with given settings.
        title: the title of the plot.
    """
    return Recipe(name, presets, cells, measure, claims, partial(plot, title=title), tables)


def cells(settings: NormGrid) -> list[Cell]:
    """Return one cell per norm, batch size and seed."""
    return grid(settings.seeds, norm=settings.norms, batch_size=settings.batch_sizes)


def measure(settings: NormGrid, cell: Cell, runs: Path) -> Measurement:
    """Train the network of a cell and return its accuracy."""
    config = replace(settings.training.config, norm=cell["norm"], batch_size=cell["batch_size"], seed=cell["seed"])
    return train_cell(config, settings.training, runs)


def order_claims(
    settings: NormGrid, pairs: Sequence[tuple[str, str]], accuracies: Mapping[str, float], batch_size: int
) -> list[Claim]:
    """Return one claim per pair of norms: the first is more accurate than the second.

    Args:
        settings: pairs with a norm that is not among the norms of the settings are left out.
        pairs: pairs of keys of `accuracies`.
        accuracies: accuracies in the paper in %, by norm. "gn:" stands for GN with any number of groups.
        batch_size: the batch size of both norms.
    """
    specs = {norm.partition(":")[0] + ":" * (":" in norm): norm for norm in settings.norms}
    return [
        more_accurate(specs[a], specs[b], f"{accuracies[a]:.2f} and {accuracies[b]:.2f}", batch_size=batch_size)
        for a, b in pairs
        if {a, b} <= specs.keys()
    ]


def tables(record: RecipeRecord[NormGrid]) -> list[Table]:
    """Return the table of accuracies by norm and batch size."""
    sizes = {f"batch {size}": size for size in record.settings.batch_sizes}
    rows = accuracy_rows(record.rows, "norm", record.settings.norms, "batch_size", sizes)
    return [result_table(rows, "Test accuracy in %, mean ± sd over seeds.")]


def plot(record: RecipeRecord[NormGrid], path: Path, title: str) -> list[Path]:
    """Plot accuracy against batch size."""
    sizes, norms = record.settings.batch_sizes, record.settings.norms
    lines = {norm: {size: successful(record.rows, norm=norm, batch_size=size) for size in sizes} for norm in norms}
    fig, _ = draw.lines(lines, xlabel="samples per batch", ylabel="test accuracy (%)", title=title)
    return save_figure(fig, path)
