"""`anynorm stylize`: stylization of an image by a trained run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from anynorm.cli.options import RunsDir
from anynorm.errors import DataError


def stylize(
    content: Annotated[Path, typer.Argument(help="The content image, a file of any size.")],
    style: Annotated[
        Path | None,
        typer.Argument(
            help="The style image, a file of any size; omit it for a run of single_style_transfer.", show_default=False
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The .png file to write.")] = Path("stylized.png"),
    model: Annotated[
        str, typer.Option("--model", help="The id of a trained run, or its first characters; see `anynorm runs list`.")
    ] = "",
    alpha: Annotated[float, typer.Option(help="Weight of the style, from 0 (the content image) to 1.")] = 1.0,
    image_size: Annotated[
        int | None, typer.Option(help="Resize the shorter side of both images to this many pixels first.", show_default=False)
    ] = None,
    runs: RunsDir = Path("runs"),
) -> None:
    """Stylize a content image with the style of another image."""
    if not model:
        raise typer.BadParameter("give the id of a run of style_transfer or single_style_transfer.", param_hint="--model")
    from anynorm.lab.tasks.run import load_run
    from anynorm.lab.tasks.style.stylize import stylize as write_picture
    from anynorm.lab.training.store import Store

    record = Store(runs).record(model)
    if not record.done:
        raise DataError(f"stylize needs a run that was trained to its end; run {model} failed: {record.note}")
    path = write_picture(load_run(runs, model), content, style, out, alpha=alpha, image_size=image_size)
    sys.stdout.write(f"Wrote {path}.\n")
