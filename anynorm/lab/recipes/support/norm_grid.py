"""Recipes that train one network with each of several norms at each of several batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from anynorm import draw
from anynorm.lab.recipes.support.claims import Check, Claim, Published, Source, more_accurate
from anynorm.lab.recipes.support.controls import Control
from anynorm.lab.recipes.support.learned import learned
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import accuracy_rows, result_table, save_figure, successful
from anynorm.lab.recipes.support.runs import train_cell
from anynorm.lab.recipes.support.settings import TrainingSettings
from anynorm.lab.training.config import Config
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table


@dataclass(frozen=True, kw_only=True)
class NormGrid(TrainingSettings):
    """Settings of a grid of norms × batch sizes.

    Args:
        norms: specs of the norms.
        batch_sizes: numbers of samples per forward pass and device, the largest first.
        min_train_accuracy: training accuracy in % that every network in a claim must reach; None for 2.5 × chance.
    """

    norms: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    min_train_accuracy: float | None = None


def controls(settings: NormGrid) -> list[Control]:
    """Return the default control: every network in a claim has learned."""
    return [learned(settings.training.config.data, settings.min_train_accuracy)]


def norm_grid_recipe(
    name: str,
    presets: Mapping[str, NormGrid],
    claims: Callable[[NormGrid], list[Claim | Check]],
    title: str,
    controls: Callable[[NormGrid], list[Control]] = controls,
) -> Recipe[NormGrid]:
    """Return a recipe that measures a grid of norms × batch sizes.

    Args:
        name: the name of the recipe's module.
        presets: settings by preset.
        claims: a function that returns the claims that can be tested with given settings.
        title: the title of the plot.
        controls: a function that returns what must be true before a claim is tested.
    """
    return Recipe(name, presets, cells, measure, claims, partial(plot, title=title), tables, controls=controls)


def cells(settings: NormGrid) -> list[Cell]:
    """Return one cell per norm, batch size and seed."""
    return grid(settings.seeds, norm=settings.norms, batch_size=settings.batch_sizes)


def cell_config(settings: NormGrid, norm: str, cell: Cell) -> Config:
    """Return the configuration of a cell.

    Args:
        settings: the settings of the recipe.
        norm: the spec of the norm.
        cell: a cell with `batch_size` and `seed`.
    """
    return replace(settings.training.config, norm=norm, batch_size=cell["batch_size"], seed=cell["seed"])


def measure(settings: NormGrid, cell: Cell, runs: Path) -> Measurement:
    """Train the network of a cell and return its accuracy."""
    return train_cell(cell_config(settings, cell["norm"], cell), settings.training, runs)


def order_claims(
    settings: NormGrid,
    pairs: Sequence[tuple[str, str]],
    accuracies: Mapping[str, float],
    batch_size: int,
    source: Source,
    requires: tuple[str, ...] = (),
    group: str = "",
) -> list[Claim | Check]:
    """Return one claim per pair of norms: the first is more accurate than the second.

    Args:
        settings: pairs with a norm that is not among the norms of the settings are left out.
        pairs: pairs of keys of `accuracies`.
        accuracies: accuracies in the paper in %, by norm. "gn:" stands for GN with any number of groups.
        batch_size: the batch size of both norms.
        source: the table or figure of the accuracies.
        requires: names of the requirements of these claims, see `Larger`.
        group: the group of these claims, see `Larger`.
    """
    specs = {norm.partition(":")[0] + ":" * (":" in norm): norm for norm in settings.norms}
    return [
        replace(
            more_accurate(specs[a], specs[b], source, Published(accuracies[a], accuracies[b]), batch_size=batch_size),
            requires=requires,
            group=group,
        )
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
    sizes, norms, rows = record.settings.batch_sizes, record.settings.norms, record.rows
    lines = {norm: {size: successful(rows, norm=norm, batch_size=size) for size in sizes} for norm in norms}
    fig, _ = draw.lines(lines, xlabel="samples per batch", ylabel="test accuracy (%)", title=title)
    return save_figure(fig, path)
