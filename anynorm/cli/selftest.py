"""`anynorm selftest`: whether the kernels are right on the user's device, and how fast they are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from anynorm.cli.options import AsJson, print_table


def selftest(
    device: Annotated[str, typer.Option(help="auto (a GPU if available), cpu, cuda, cuda:1, xpu or mps.")] = "auto",
    norms: Annotated[str, typer.Option(help="Comma-separated specs, such as bn,gn:32; by default all norms.")] = "",
    out: Annotated[Path, typer.Option(help="Write all numbers to this .json file, to be attached to an issue.")] = Path(
        "selftest.json"
    ),
    as_json: AsJson = False,
) -> None:
    """Compare all norms with the reference on a device and time them against torch's layers; exit with code 1 if they differ."""
    from anynorm.errors import DataError
    from anynorm.io.atomic import atomic_write
    from anynorm.selftest.devices import find_device
    from anynorm.selftest.report import run_selftest

    found = find_device(device)
    if not out.parent.is_dir():
        raise DataError(f"--out must be in an existing folder; got {out}. Create the folder {out.parent}.")
    report = run_selftest(found, norms.split(",") if norms else None)
    with atomic_write(out) as temporary:
        temporary.write_text(report.json(), encoding="utf-8")
    if as_json:
        sys.stdout.write(report.json())
    else:
        table = report.table()
        table.finding += f" Wrote {out}."
        print_table(table, as_json)
    if report.differing:
        raise typer.Exit(1)
