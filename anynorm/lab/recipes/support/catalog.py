"""The list of recipes, read from their source files without importing them (and so without importing torch).

The docstring of a recipe starts with "PAPER TABLE: what is measured." The running times of presets are those of the records:
`minutes.json`, which `make results` writes from them.
"""

from __future__ import annotations

import ast
import json
from functools import lru_cache
from importlib import import_module, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from anynorm.errors import DataError, unknown_name
from anynorm.table import Table

if TYPE_CHECKING:
    from anynorm.lab.recipes.support.recipe import Recipe
    from anynorm.lab.recipes.support.record import RecipeRecord

MINUTES_FILE = "minutes.json"
IN_FOLDER = "recipe.py"
"""The file with RECIPE of a recipe that is a folder."""


class Header(NamedTuple):
    """The first line of the docstring of a recipe.

    Attributes:
        source: the table or figure of the paper, such as "bgn Table 1".
        title: a description of the measurements.
    """

    source: str
    title: str


def recipe_names() -> list[str]:
    """Return the names of all recipes, sorted."""
    return sorted(_read_sources())


def recipe_file(name: str) -> str:
    """Return the file of a recipe, relative to the folder of recipes.

    Raises:
        DataError: if no recipe has this name.

    >>> recipe_file("hn_with_sn"), recipe_file("xbn_mlp")
    ('hn/with_sn.py', 'xbn/mlp/recipe.py')
    """
    _check_name(name)
    return _read_sources()[name].file


class _Source(NamedTuple):
    """A file of a recipe, relative to the folder of recipes, and its text."""

    file: str
    text: str


@lru_cache
def _read_sources() -> dict[str, _Source]:
    """Return the file of each recipe by its name, PAPER_NAME: PAPER/NAME.py or PAPER/NAME/recipe.py, if it has RECIPE."""
    sources = {}
    papers = (folder for folder in resources.files("anynorm.lab.recipes").iterdir() if folder.is_dir())
    for paper in (paper for paper in papers if paper.name != "support"):
        for entry in paper.iterdir():
            path, file = (f"{entry.name}/{IN_FOLDER}", entry.joinpath(IN_FOLDER)) if entry.is_dir() else (entry.name, entry)
            if path.endswith(".py") and file.is_file():
                name = f"{paper.name}_{entry.name.removesuffix('.py')}"
                sources[name] = _Source(f"{paper.name}/{path}", file.read_text(encoding="utf-8"))
    return {name: source for name, source in sources.items() if "\nRECIPE = " in source.text}


@lru_cache
def read_header(name: str) -> Header:
    """Return the header of a recipe.

    Raises:
        DataError: if no recipe has this name.
    """
    _check_name(name)
    docstring = ast.get_docstring(ast.parse(_read_sources()[name].text)) or ""
    source, _, title = docstring.partition("\n")[0].partition(": ")
    return Header(source, title.rstrip("."))


@lru_cache
def read_minutes() -> dict[str, dict[str, float | None]]:
    """Return the minutes of the record of each preset, by recipe and preset; None for a preset without a record."""
    text = resources.files("anynorm.lab.recipes").joinpath(MINUTES_FILE).read_text(encoding="utf-8")
    minutes: dict[str, dict[str, float | None]] = json.loads(text)
    return minutes


def has_run(name: str, preset: str) -> bool:
    """Whether a preset has a record. The settings of the others are data that have never been run."""
    return read_minutes()[name][preset] is not None


def recipe_table() -> Table:
    """Return a table with one row per recipe: name, table or figure of the paper, description, running time of each preset."""
    rows = []
    for name in recipe_names():
        minutes = read_minutes()[name]
        times = {preset: _format_minutes(minutes[preset]) if preset in minutes else "" for preset in ("desk", "night", "paper")}
        rows.append({"recipe": name, "reproduces": read_header(name).source, "measures": read_header(name).title, **times})
    finding = (
        "Times are those of the records, in minutes of one core. 'not run': the preset has no record; paper presets need a GPU, "
        "or data that are not downloaded automatically. desk is a demonstration; every recipe also has the preset smoke, which "
        "takes seconds and only checks the code. To run one: anynorm reproduce NAME --preset desk"
    )
    return Table(rows, finding)


def _format_minutes(minutes: float | None) -> str:
    return "not run" if minutes is None else f"{minutes:.0f} min"


def load_recipe(name: str) -> Recipe[Any]:
    """Import a recipe.

    Raises:
        DataError: if no recipe has this name, or a package that the recipe needs is not installed.
    """
    module = recipe_file(name).removesuffix(".py").replace("/", ".")
    try:
        recipe: Recipe[Any] = import_module(f"anynorm.lab.recipes.{module}").RECIPE
    except ModuleNotFoundError as error:
        raise DataError(f"recipe {name!r} needs {error.name}: pip install 'anynorm[lab]'.") from error
    return recipe


def read_record(path: Path) -> RecipeRecord[Any]:
    """Read a record NAME.PRESET.json with the settings of the recipe NAME.

    Raises:
        DataError: if no recipe has this name, or the file is not a record (see `record.read_record`).
    """
    return load_recipe(path.name.partition(".")[0]).read(path)


def _check_name(name: str) -> None:
    names = recipe_names()
    if name not in names:
        raise DataError(unknown_name("recipe", name, names))
