"""Recipes that train one network with the mean of one norm and the standard deviation of another, for every pair of norms."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.norm_grid import NormGrid
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import accuracy_of, accuracy_rows, result_table, save_figure, successful
from anynorm.lab.recipes.support.runs import train_cell
from anynorm.lab.training.sweep import Cell, Measurement, grid
from anynorm.table import Table


def pair_grid_recipe(name: str, presets: Mapping[str, NormGrid], claims: Callable[[NormGrid], list[Claim]]) -> Recipe[NormGrid]:
    """Return a recipe that measures a grid of means × standard deviations × batch sizes.

    Args:
        name: the name of the recipe's module.
        presets: settings by preset.
        claims: a function that returns the claims that can be tested with given settings.
    """
    return Recipe(name, presets, cells, measure, claims, plot, tables)


def cells(settings: NormGrid) -> list[Cell]:
    """Return one cell per pair of norms, batch size and seed."""
    return grid(settings.seeds, mean=settings.norms, std=settings.norms, batch_size=settings.batch_sizes)


def measure(settings: NormGrid, cell: Cell, runs: Path) -> Measurement:
    """Train the network of a cell with the spec "MEAN/STD" and return its accuracy."""
    norm = cell["mean"] if cell["mean"] == cell["std"] else f"{cell['mean']}/{cell['std']}"
    config = replace(settings.training.config, norm=norm, batch_size=cell["batch_size"], seed=cell["seed"])
    return train_cell(config, settings.training, runs)


def more_accurate_pair(pair: tuple[str, str], other: tuple[str, str], batch_size: int, paper: str) -> Claim:
    """Return the claim that a pair (mean, std) is more accurate than another pair.

    Args:
        pair: the more accurate pair.
        other: the less accurate pair.
        batch_size: the batch size of both pairs.
        paper: the numbers in the paper, see `Claim`.
    """
    statement = f"({', '.join(pair)}) is more accurate than ({', '.join(other)}) (batch {batch_size})"
    larger, smaller = (accuracy_of(mean=mean, std=std, batch_size=batch_size) for mean, std in (pair, other))
    return Claim(statement, paper, larger, smaller)


def tables(record: RecipeRecord[NormGrid]) -> list[Table]:
    """Return one table per batch size, laid out as in the paper: one column per mean, one row per standard deviation."""
    means = {mean: mean for mean in record.settings.norms}
    result = []
    for size in record.settings.batch_sizes:
        rows = accuracy_rows(record.rows, "std", record.settings.norms, "mean", means, label="std \\ mean", batch_size=size)
        finding = f"Test accuracy in % at batch size {size}, mean ± sd over seeds. Columns: norm of the mean; rows: of the std."
        result.append(result_table(rows, finding))
    return result


def plot(record: RecipeRecord[NormGrid], path: Path) -> list[Path]:
    """Plot the accuracies as one grid per batch size."""
    norms, sizes = record.settings.norms, record.settings.batch_sizes
    fig = Figure(figsize=(6 * len(sizes), 5), layout="constrained")
    for ax, size in zip(fig.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        accuracies = [[successful(record.rows, mean=mean, std=std, batch_size=size) for mean in norms] for std in norms]
        means = [[statistics.fmean(values) if values else float("nan") for values in line] for line in accuracies]
        labels = {"xlabel": "norm of the mean", "ylabel": "norm of the standard deviation", "title": f"batch size {size}"}
        draw.annotated_heatmap(means, (norms, norms), ax, label="test accuracy (%)", **labels)
    return save_figure(fig, path)
