"""The list of recipes, read from their source files without importing them (and so without importing torch).

The docstring of a recipe starts with "PAPER TABLE: what is measured." and has one line per preset:

        desk   18 min   5000 images of CIFAR-10 …

that is, four spaces, then the preset, its running time and a description, separated by at least two spaces.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module, resources
from typing import TYPE_CHECKING

from anynorm.errors import DataError, unknown_name
from anynorm.table import Table

if TYPE_CHECKING:
    from anynorm.lab.recipes.support.recipe import Recipe

PRESETS = ("smoke", "desk", "paper")
"""The common presets of recipes. A few recipes also have `evening`, a preset between desk and paper."""
_PRESET_LINE = re.compile(rf"^    ({'|'.join((*PRESETS, 'evening'))})  +(\S.*?)  +(\S.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Header:
    """The contents of the docstring of a recipe.

    Attributes:
        source: the table or figure of the paper, such as "bgn Table 1".
        title: a description of the measurements.
        times: running time by preset, such as "18 min"; "not run" if the preset has never been run.
    """

    source: str
    title: str
    times: dict[str, str]


def recipe_names() -> list[str]:
    """Return the names of all recipes, sorted."""
    files = (file.name for file in resources.files("anynorm.lab.recipes").iterdir())
    return sorted(name.removesuffix(".py") for name in files if name.endswith(".py") and not name.startswith("_"))


@lru_cache
def read_header(name: str) -> Header:
    """Return the header of a recipe.

    Raises:
        DataError: if no recipe has this name.
    """
    _check_name(name)
    code = resources.files("anynorm.lab.recipes").joinpath(f"{name}.py").read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(code)) or ""
    source, _, title = docstring.partition("\n")[0].partition(": ")
    return Header(source, title.rstrip("."), {preset: time for preset, time, _ in _PRESET_LINE.findall(docstring)})


def recipe_table() -> Table:
    """Return a table with one row per recipe: name, table or figure of the paper, description, running time of each preset."""
    rows = []
    for name in recipe_names():
        header = read_header(name)
        times = {preset: header.times.get(preset, "") for preset in PRESETS}
        rows.append({"recipe": name, "reproduces": header.source, "measures": header.title, **times})
    finding = (
        "Times were measured on two cores or one; presets marked 'not run' need a GPU, or data that were not at hand. "
        "To run one: anynorm reproduce NAME --preset desk"
    )
    return Table(rows, finding)


def load_recipe(name: str) -> Recipe:
    """Import a recipe.

    Raises:
        DataError: if no recipe has this name, or a package that the recipe needs is not installed.
    """
    _check_name(name)
    try:
        recipe: Recipe = import_module(f"anynorm.lab.recipes.{name}").RECIPE
    except ModuleNotFoundError as error:
        raise DataError(f"recipe {name!r} needs {error.name}: pip install 'anynorm[lab]'.") from error
    return recipe


def _check_name(name: str) -> None:
    names = recipe_names()
    if name not in names:
        raise DataError(unknown_name("recipe", name, names))
