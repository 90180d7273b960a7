"""What commands share: options, and how they print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

AsJson = Annotated[bool, typer.Option("--json", help="Print data for a program.")]
Model = Annotated[str, typer.Option("--model", help="package.module:factory, called without arguments.")]
Checkpoint = Annotated[Path | None, typer.Option(help="A state_dict to load, .safetensors or torch's.")]
Out = Annotated[Path | None, typer.Option(help="Where to write the changed state_dict, as safetensors.")]
Data = Annotated[
    str, typer.Option(help="Inputs: a folder of images, an .npz, .npy or .pt file of (n, c, …), or package.module:factory.")
]
Where = Annotated[
    str, typer.Option("--executor", help="local: processes of this machine; ray: a Ray cluster (RAY_ADDRESS), or one of its own.")
]
Root = Annotated[Path, typer.Option("--runs", help="The folder that runs are kept in.")]
Paths = Annotated[
    list[str] | None, typer.Option("--where", help="Paths of norms, such as 'layer3.*'; may be given more than once.")
]


def make_console() -> Console:
    """Make a console as wide as the terminal; what is piped is not folded."""
    return Console() if sys.stdout.isatty() else Console(width=200)


def print_json(data: Any) -> None:
    """Print data for a program."""
    sys.stdout.write(json.dumps(data, indent=2) + "\n")


def print_report(report: Any, as_json: bool) -> None:
    """Print rows and finding for a person or a program."""
    sys.stdout.write((report.json() if as_json else report.table()) + "\n")
