"""`anynorm diagnose`: questions about what normalization does to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anynorm.cli.options import AsJson, Checkpoint, NormPaths, RunsDir, print_report
from anynorm.errors import DataError


def diagnose(
    model: Annotated[str, typer.Argument(help="package.module:factory, called without arguments; or run:ID, a run of the lab.")],
    what: Annotated[str, typer.Option(help="shift, importance, perturb, fluctuation or gradients.")] = "shift",
    data: Annotated[
        str | None,
        typer.Option(help="A folder of images, a file of inputs (and labels), or module:factory; a run has its own test set."),
    ] = None,
    checkpoint: Checkpoint = None,
    where: NormPaths = None,
    batches: Annotated[int | None, typer.Option(min=1, help="How many batches; all, if not given.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples a batch, where --data is a file or a folder.")] = 64,
    side: Annotated[int, typer.Option(min=1, help="Images of a folder are made squares of so many pixels.")] = 224,
    mean: Annotated[str, typer.Option(help="What is taken off each channel of an image of 0 to 1.")] = "0.485,0.456,0.406",
    std: Annotated[str, typer.Option(help="What each channel is then divided by.")] = "0.229,0.224,0.225",
    deltas: Annotated[str, typer.Option(help="perturb: the noise magnitudes.")] = "0.1,0.2,0.3,0.4,0.5",
    per: Annotated[str, typer.Option(help="perturb: one draw a layer, or a channel.")] = "layer",
    root: RunsDir = Path("runs"),
    seeds: Annotated[int, typer.Option(min=1, help="perturb: how many draws.")] = 5,
    plot: Annotated[Path | None, typer.Option(help="Where to draw the answer: .png, .pdf or .svg.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask what normalization does to a model: which norm shifts, what mixed norms use, how it bears wrong statistics."""
    from anynorm.diagnostics.questions import DiagnoseArgs, run_diagnostic
    from anynorm.io.checkpoints import load_model
    from anynorm.io.inputs import ImageTransform, read_batches

    if plot is not None:
        from anynorm.plot import check_picture, draw

        check_picture(plot)
    images = ImageTransform(side, _numbers("--mean", mean), _numbers("--std", std))
    given = None if data is None else read_batches(data, batch_size, images)
    if model.startswith("run:"):
        from anynorm.training.run import load_run

        network, own = load_run(root, model.removeprefix("run:"))
        given = own.test_batches(batch_size) if given is None else given
    else:
        network = load_model(model, checkpoint)
    asked = DiagnoseArgs(
        network,
        given,
        where=where,
        batches=batches,
        deltas=_numbers("--deltas", deltas),
        per=per,
        seeds=seeds,
    )
    report = run_diagnostic(what, asked)
    if plot is not None:
        draw(report, plot)
        report.finding += f" Drawn in {plot}."
    print_report(report, as_json)


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise DataError(f"{option} {text!r} are no numbers; write them with commas between, such as 0.1,0.2.") from None
