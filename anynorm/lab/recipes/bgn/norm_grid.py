"""Grids of norms × batch sizes in which the number of groups of BGN may be chosen on validation data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from anynorm.lab.recipes.bgn.group_choice import GroupSweep, choose_groups, with_groups
from anynorm.lab.recipes.support import norm_grid
from anynorm.lab.recipes.support.claims import Check, Claim
from anynorm.lab.recipes.support.controls import Control
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_table, select
from anynorm.lab.recipes.support.runs import train_cell
from anynorm.lab.training.sweep import Cell, Measurement
from anynorm.table import Table


@dataclass(frozen=True, kw_only=True)
class GroupedNormGrid(norm_grid.NormGrid):
    """Settings of a grid of norms × batch sizes.

    Args:
        groups: the sweep that chooses G of `bgn`, for each batch size apart.
        num_validation: number of training images that are held out in a sweep, and in a pilot.
    """

    groups: GroupSweep = field(default_factory=GroupSweep)
    num_validation: int = 5000


def grouped_norm_grid_recipe(
    name: str,
    presets: Mapping[str, GroupedNormGrid],
    claims: Callable[[GroupedNormGrid], list[Claim | Check]],
    title: str,
    controls: Callable[[GroupedNormGrid], list[Control]],
) -> Recipe[GroupedNormGrid]:
    """Return a recipe that measures a grid; arguments as in `norm_grid.norm_grid_recipe`."""
    plot = partial(norm_grid.plot, title=title)
    return Recipe(name, presets, norm_grid.cells, measure, claims, plot, tables, controls=controls)


def measure(settings: GroupedNormGrid, cell: Cell, runs: Path) -> Measurement:
    """Choose G if the sweep of the settings applies to the norm of a cell, train its network, and return its accuracy."""
    norm = cell["norm"]
    if not settings.groups.chooses(norm):
        return norm_grid.measure(settings, cell, runs)

    def accuracy(groups: int, seed: int) -> float | None:
        config = norm_grid.cell_config(settings, with_groups(norm, groups), cell | {"seed": seed})
        config = replace(config, num_validation=settings.num_validation, num_test=None)
        value: float | None = train_cell(config, settings.training, runs)["accuracy"]
        return value

    chosen = choose_groups(settings.groups, accuracy)
    config = norm_grid.cell_config(settings, with_groups(norm, chosen.groups), cell)
    return train_cell(config, settings.training, runs) | chosen.columns


def tables(record: RecipeRecord[GroupedNormGrid]) -> list[Table]:
    """Return the accuracies by norm and batch size and, if it was chosen, the number of groups of BGN by batch size."""
    settings = record.settings
    result = norm_grid.tables(record)  # type: ignore[arg-type]
    rows = []
    for norm in filter(settings.groups.chooses, settings.norms):
        for size in settings.batch_sizes:
            sweeps = select(record.rows, "group_sweep", norm=norm, batch_size=size)
            if sweeps:
                rows.append({"batch": size, **{f"G = {groups}": value for groups, value in sweeps[0].items()}})
    if rows:
        result.append(result_table(rows, "Validation accuracy in % of the sweep that chose G of BGN, mean over pilot seeds."))
    return result
