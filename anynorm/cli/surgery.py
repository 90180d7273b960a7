"""Surgery from the command line: `anynorm inspect`, `convert`, `xbn`, `fold`, `recalibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import anynorm
from anynorm.cli.options import AsJson, Checkpoint, Data, Model, NormPaths, Out, print_report


def inspect(model: Model, checkpoint: Checkpoint = None, as_json: AsJson = False) -> None:
    """List a model's norms: path, class, spec, channels, what is kept."""
    from anynorm.io.checkpoints import load_model
    from anynorm.surgery.inspect import inspect as look

    print_report(look(load_model(model, checkpoint)), as_json)


def convert(
    spec: Annotated[str, typer.Argument(help="The norm to put in, such as gn:32.")],
    model: Model,
    checkpoint: Checkpoint = None,
    where: NormPaths = None,
    fit: Annotated[str | None, typer.Option(help="Calibration inputs on which γ and β are solved.")] = None,
    groups: Annotated[str, typer.Option(help="exact, or nearest: the nearest group number that divides the channels.")] = "exact",
    batch_size: Annotated[int | None, typer.Option(help="Samples a device in training, for bgn without a number.")] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Replace a model's norms, carrying over what can be."""
    from anynorm.io.checkpoints import load_model
    from anynorm.io.inputs import read_batches

    loaded = load_model(model, checkpoint).eval()
    data = None if fit is None else list(read_batches(fit))
    options: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
    _finish(anynorm.convert(loaded, spec, where, fit=data, groups=groups, **options), out, as_json)


def xbn(
    model: Model,
    norm: Annotated[str, typer.Option(help="The batch-free norm put in.")] = "gn:64",
    position: Annotated[int, typer.Option(help="Which norm of each block: 1, 2 or 3.")] = 2,
    every: Annotated[int, typer.Option(help="Every so many blocks: 1, 2, 4 or 8.")] = 1,
    stem: Annotated[bool, typer.Option(help="The norm before the first block too.")] = False,
    checkpoint: Checkpoint = None,
    fit: Annotated[str | None, typer.Option(help="Calibration inputs on which γ and β are solved.")] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Make the residual blocks of a model XBNBlocks."""
    from anynorm.io.checkpoints import load_model
    from anynorm.io.inputs import read_batches

    loaded = load_model(model, checkpoint).eval()
    data = None if fit is None else list(read_batches(fit))
    _finish(anynorm.xbn(loaded, norm, position, every, stem, fit=data), out, as_json)


def fold(
    model: Model,
    data: Data,
    condition: Annotated[int | None, typer.Option(help="The class or domain that conditional norms are folded for.")] = None,
    checkpoint: Checkpoint = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Fold norms with fixed statistics into the layers beside them; the first batch of --data is the example."""
    from anynorm.io.checkpoints import load_model
    from anynorm.io.inputs import read_first_input

    loaded = load_model(model, checkpoint).eval()
    _finish(anynorm.fold(loaded, read_first_input(data), condition=condition), out, as_json)


def recalibrate(
    model: Model,
    data: Data,
    batches: Annotated[int | None, typer.Option(help="How many batches; all, if not given.")] = None,
    batch_size: Annotated[int, typer.Option(help="Samples a batch, where --data is a file.")] = 64,
    estimator: Annotated[str, typer.Option(help="pooled or averaged.")] = "pooled",
    checkpoint: Checkpoint = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the kept statistics of a model's norms again."""
    from anynorm.io.checkpoints import load_model
    from anynorm.io.inputs import read_batches

    loaded = load_model(model, checkpoint)
    _finish(anynorm.recalibrate(loaded, read_batches(data, batch_size), batches, estimator=estimator), out, as_json)


def _finish(report: Any, out: Path | None, as_json: bool) -> None:
    """Write the changed model and print the report."""
    if out is not None:
        from anynorm.io.checkpoints import save_model

        save_model(report.model, out)
        report.finding += f" Written to {out}."
    print_report(report, as_json)
