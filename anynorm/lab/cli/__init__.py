"""The commands of the lab, which `anynorm --help` lists with those of the library. They need `pip install 'anynorm[lab]'`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import typer

from anynorm.errors import DataError
from anynorm.lab.cli import compare, reproduce, runs, stylize
from anynorm.lab.cli.task_options import SETTINGS, TaskCommand

EXTRA = r"Lab (pip install 'anynorm\[lab]')"


def add_commands(app: typer.Typer) -> None:
    """Add the commands of the lab to the command line interface, in a panel that says which extra they need."""
    app.command(cls=TaskCommand, context_settings=SETTINGS, rich_help_panel=EXTRA)(_explain_missing(compare.compare))
    for command in (compare.report, reproduce.reproduce, stylize.stylize):
        app.command(rich_help_panel=EXTRA)(_explain_missing(command))
    app.add_typer(runs.app, name="runs", rich_help_panel=EXTRA)


def _explain_missing(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command; if a package of the lab is not installed, it says what to install."""

    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("anynorm"):
                raise
            raise DataError(f"anynorm {command.__name__} needs {error.name}: pip install 'anynorm[lab]'.") from error

    return run
