"""The command line: parse, call, print. A table for a person, --json for a program; torch is loaded by what needs it."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

import anynorm
from anynorm.cli import diagnose, lab, reproduce, surgery, zoo
from anynorm.errors import AnynormError

app = typer.Typer(help="Any norm, in any model.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def start(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Any norm, in any model."""
    if version:
        typer.echo(anynorm.__version__)


app.command("list")(zoo.list_)
app.command()(zoo.show)
for _command in (surgery.inspect, surgery.convert, surgery.xbn, surgery.fold, surgery.recalibrate):
    app.command()(_command)
app.command()(diagnose.diagnose)
app.command()(reproduce.reproduce)
app.command()(lab.compare)
app.command()(lab.report)
app.add_typer(lab.runs, name="runs")


def main() -> None:
    """Run the command line; misuse goes to stderr with exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no γ gets a ?
    try:
        app()
    except AnynormError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(2)
