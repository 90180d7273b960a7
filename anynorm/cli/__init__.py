"""The command line interface.

Commands print a table, or JSON with --json. They import torch only when they run, so that --help is fast.
"""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

import anynorm
from anynorm.cli import diagnose, info, selftest, surgery, zoo
from anynorm.cli.plugins import add_commands
from anynorm.errors import AnynormError
from anynorm.io.importable import importable_folder

app = typer.Typer(help="Any norm, in any model.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def start(
    ctx: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False
) -> None:
    """Any norm, in any model."""
    ctx.with_resource(importable_folder())
    if version:
        typer.echo(anynorm.__version__)
        raise typer.Exit


app.command("list")(zoo.list_)
app.command()(zoo.show)
app.command()(info.info)
app.command()(selftest.selftest)
for _command in (surgery.inspect, surgery.convert, surgery.xbn, surgery.fold, surgery.to_rms, surgery.recalibrate):
    app.command()(_command)
app.command()(diagnose.diagnose)
add_commands(app)


def main() -> None:
    """Run the command line interface; print a user error to stderr and exit with code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # print ? for characters, such as γ, that the encoding does not have
    try:
        app()
    except AnynormError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(2)
