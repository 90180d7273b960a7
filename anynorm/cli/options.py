"""Common options of the commands, and functions that print results."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from anynorm.errors import SpecError
from anynorm.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Model = Annotated[str, typer.Option("--model", help="Model factory, package.module:factory, called without arguments.")]
Checkpoint = Annotated[Path | None, typer.Option(help="A state_dict to load: a .safetensors or torch file.")]
Out = Annotated[Path | None, typer.Option(help="Write the changed state_dict to this .safetensors file.")]
Data = Annotated[
    str,
    typer.Option(help="Inputs: a folder of images, an .npz, .npy or .pt file of tensors (n, c, …), or package.module:factory."),
]
Executor = Annotated[
    str,
    typer.Option("--executor", help="local: processes on this machine; ray: the Ray cluster at RAY_ADDRESS, or a new local one."),
]
Device = Annotated[str, typer.Option("--device", help="auto (a GPU if available), cpu, cuda or mps.")]
Logger = Annotated[
    str | None, typer.Option("--logger", help="tensorboard: write TensorBoard event files into the folder of each run.")
]
RunsDir = Annotated[Path, typer.Option("--runs", help="Folder of the runs.")]
NormPaths = Annotated[
    list[str] | None, typer.Option("--where", help="Pattern of norm paths, such as 'layer3.*'; can be repeated.")
]


def parse_numbers(option: str, text: str, example: str = "0.1,0.2") -> tuple[float, ...]:
    """Return the comma-separated numbers that an option of the command line has as text.

    Raises:
        SpecError: if the text has another form.
    """
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise SpecError(f"{option} must be comma-separated numbers, such as {example}; got {text!r}.") from None


def parse_integers(option: str, text: str, example: str) -> tuple[int, ...]:
    """Return the comma-separated integers that an option of the command line has as text.

    Raises:
        SpecError: if the text has another form.
    """
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise SpecError(f"{option} must be comma-separated integers, such as {example}; got {text!r}.") from None


def make_console() -> Console:
    """Return a console as wide as the terminal, or 200 columns wide if the output is redirected."""
    return Console() if sys.stdout.isatty() else Console(width=200)


def print_json(data: Any) -> None:
    """Print data as JSON."""
    sys.stdout.write(json.dumps(data, indent=2) + "\n")


def print_table(table: Table, as_json: bool) -> None:
    """Print a table as text or as JSON."""
    sys.stdout.write((table.json() if as_json else table.text()) + "\n")
