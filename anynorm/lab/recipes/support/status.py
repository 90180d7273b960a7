"""What is measured of the recipes, what is missing, and how long it will take."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from anynorm.errors import DataError
from anynorm.lab.recipes.support.recipe import DESK, SMOKE, Recipe
from anynorm.lab.recipes.support.record import MeasuredCell, RecipeRecord, cell_key
from anynorm.lab.training.sweep import Cell
from anynorm.table import Table


def status_table(recipes: Iterable[Recipe[Any]], folder: Path) -> Table:
    """Return a table with one row per recipe and preset, except smoke presets and presets without a record that need GPUs.

    Args:
        recipes: the recipes.
        folder: the folder of the records.
    """
    rows = []
    for recipe in recipes:
        for preset in recipe.presets:
            measured = recipe.path(preset, folder).exists()
            if preset != SMOKE and (measured or preset not in (DESK, "paper")):
                rows.append({"recipe": recipe.name, "preset": preset, **_status(recipe, preset, folder)})
    missing = sum(row["cells"] - row["measured"] for row in rows)
    hours = sum(row["core hours left"] or 0.0 for row in rows)
    unknown = sum(row["core hours left"] is None for row in rows)
    untimed = sum(row["cells"] - row["measured"] for row in rows if row["core hours left"] is None)
    parts = [f"about {hours:.1f} hours of one core"] if missing > untimed or not unknown else []
    parts += [f"no cell of {unknown} presets with {untimed} cells has been timed"] if unknown else []
    finding = f"{missing} cells are missing: {'; '.join(parts)}. To measure: anynorm reproduce NAME --preset PRESET"
    return Table(rows, finding, formats={"core hours left": ".1f"})


def _status(recipe: Recipe[Any], preset: str, folder: Path) -> dict[str, Any]:
    settings = recipe.settings(preset)
    cells = recipe.cells(settings)
    try:
        record = recipe.open_record(preset, folder)
        pending = recipe.pending(record, recipe.path(preset, folder))
    except DataError as error:
        return {"cells": len(cells), "measured": 0, "to repeat": 0, "core hours left": None, "note": _first_sentence(error)}
    latest = record.latest
    measured = [cell for cell in cells if cell_key(cell) in latest]
    repeated = sum(cell_key(cell) in latest for cell in pending)
    seconds = seconds_left(pending, _timed_cells(recipe, record, folder))
    return {
        "cells": len(cells),
        "measured": len(measured) - repeated,
        "to repeat": repeated,
        "core hours left": None if seconds is None else seconds / 3600,
        "note": "another version of the code measured part of a seed" if repeated else "",
    }


def seconds_left(pending: list[Cell], timed: list[MeasuredCell]) -> float | None:
    """Return the seconds of one core that cells will take: as long as the same cell with other seeds, or else the mean.

    Args:
        pending: the cells to measure.
        timed: measured cells.

    Returns:
        The seconds; None if no cell has been timed.
    """
    by_cell: dict[str, list[float]] = {}
    for cell in timed:
        by_cell.setdefault(_key_without_seed(cell.cell), []).append(float(cell.provenance.get("seconds", 0.0)))
    if not by_cell:
        return None if pending else 0.0
    mean = statistics.fmean(second for seconds in by_cell.values() for second in seconds)
    return sum(statistics.fmean(by_cell.get(_key_without_seed(cell), [mean])) for cell in pending)


def _timed_cells(recipe: Recipe[Any], record: RecipeRecord[Any], folder: Path) -> list[MeasuredCell]:
    """Return the measured cells of a record and of its pilot."""
    path = recipe.path(record.preset, folder, pilot=True)
    return [*record.latest.values(), *(recipe.read(path).latest.values() if path.exists() else ())]


def _key_without_seed(cell: Cell) -> str:
    return cell_key({name: value for name, value in cell.items() if name != "seed"})


def _first_sentence(error: DataError) -> str:
    return str(error).partition(". ")[0]
