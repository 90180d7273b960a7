"""Commands and models that other parts of the installation add, by entry points of the package metadata.

    anynorm.commands    name = module:function     function(app) adds commands to a Typer application
    anynorm.models      prefix = module:function   function(name, folder) returns a `TrainedModel` for --model prefix:name

The lab adds `compare`, `report`, `reproduce`, `runs`, `stylize` and the models `run:ID` in this way; the library imports
nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import typer

from anynorm.errors import DataError


@dataclass(frozen=True)
class TrainedModel:
    """A model by name, with the data on which a diagnostic evaluates it.

    Args:
        network: the model, with its trained parameters.
        batches: a function from a batch size to batches of test data, or to None if there are none.
        standardization: `mean` and `std` per channel of images in [0, 1]; empty if unknown.
    """

    network: Any
    batches: Callable[[int], Iterator[Any] | None]
    standardization: dict[str, tuple[float, ...]]


def add_commands(app: typer.Typer) -> None:
    """Add the commands of every entry point of the group `anynorm.commands`."""
    for entry in metadata.entry_points(group="anynorm.commands"):
        entry.load()(app)


def load_trained(model: str, folder: Path) -> TrainedModel | None:
    """Return the model of a name such as `run:ID`; None if its prefix belongs to no entry point of the group `anynorm.models`.

    Raises:
        DataError: if the prefix belongs to a part of anynorm whose dependencies are not installed.
    """
    prefix, _, name = model.partition(":")
    for entry in metadata.entry_points(group="anynorm.models", name=prefix):
        try:
            load: Callable[[str, Path], TrainedModel] = entry.load()
        except ModuleNotFoundError as error:
            raise DataError(f"--model {prefix}:… needs {error.name}: pip install 'anynorm[lab]'.") from error
        return load(name, folder)
    return None
