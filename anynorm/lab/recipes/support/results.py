"""The pictures of a record: the forest plot of its claims, the plots of the recipe, and learning curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anynorm.lab.recipes.support.curves import curve_plot
from anynorm.lab.recipes.support.forest import forest_plot
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord

FOREST, CURVES = "forest", "curves"
"""Suffixes of the pictures that every recipe has."""


def write_pictures(recipe: Recipe[Any], record: RecipeRecord[Any], folder: Path) -> list[Path]:
    """Write the pictures of a record to a folder and return their paths, in the order in which a page shows them.

    Args:
        recipe: the recipe.
        record: its record.
        folder: the folder of the pictures `NAME.PRESET….png`.
    """
    base = folder / f"{recipe.name}.{record.preset}"
    keys = [key for key in record.cells[0].cell if key != "seed"] if record.cells else []
    forest = forest_plot(recipe.judge(record), f"{recipe.name}, {record.preset}", base.with_name(f"{base.name}.{FOREST}"))
    curves = curve_plot(record.rows, keys, f"{recipe.name}, {record.preset}", base.with_name(f"{base.name}.{CURVES}"))
    return [*forest, *recipe.plot(record, base), *curves]


def pictures(recipe: str, preset: str, folder: Path) -> list[Path]:
    """Return the pictures of a record that exist, in the order of `write_pictures`."""
    base = f"{recipe}.{preset}"
    first, last = folder / f"{base}.{FOREST}.png", folder / f"{base}.{CURVES}.png"
    others = [path for path in sorted(folder.glob(f"{base}*.png")) if path not in (first, last)]
    return [path for path in (first, *others, last) if path.exists()]
