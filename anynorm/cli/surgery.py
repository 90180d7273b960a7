"""Commands that list or change the norms of a model: `anynorm inspect`, `convert`, `xbn`, `fold`, `to-rms`, `recalibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import anynorm
from anynorm.cli.options import AsJson, Checkpoint, Data, Model, Out, print_json, print_table

Fit = Annotated[
    str | None,
    typer.Option(help="Calibration inputs, to which γ and β of the new norms are fitted: a folder, a file or a factory."),
]


def inspect(model: Model, checkpoint: Checkpoint = None, as_json: AsJson = False) -> None:
    """List the norms of a model: path, class, spec, channels, running statistics."""
    from anynorm.io.checkpoints import load_model
    from anynorm.surgery.inspect import inspect as inspect_model

    print_table(inspect_model(load_model(model, checkpoint)), as_json)


def convert(
    spec: Annotated[str, typer.Argument(help="Spec of the new norms, such as gn:32.")],
    model: Model,
    checkpoint: Checkpoint = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="Paths of norms, such as 'layer3.*', or 'all'; can be repeated.",
            show_default="norms that pool over samples, or all if none does",
        ),
    ] = None,
    fit: Fit = None,
    groups: Annotated[
        str,
        typer.Option(
            help="If a number of groups does not divide the channels: exact for an error, nearest to use the nearest that does."
        ),
    ] = "exact",
    batch_size: Annotated[
        int | None, typer.Option(help="Number of samples per device in training, for bgn without a number of groups.")
    ] = None,
    distill: Annotated[
        str | None,
        typer.Option(
            help="Inputs, without labels, on which the converted model is trained to return what the original returns: a folder, "
            "a file or a factory. Without --fit, the first 512 are also the calibration inputs."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Budget of --distill in steps.", show_default="1000")] = None,
    minutes: Annotated[float | None, typer.Option(help="Budget of --distill in minutes, instead of --steps.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="File to which --distill writes its state, and from which it resumes after an interrupt.")
    ] = None,
    fold: Annotated[
        bool,
        typer.Option("--fold", help="Fold the new norms at the end; the first inputs of --distill or --fit are the example."),
    ] = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Replace the norms of a model; γ, β and running statistics are transferred if possible."""
    from anynorm.cli.conversion import Route
    from anynorm.io.checkpoints import load_model

    route = Route(fit, distill, steps, minutes, resume, fold)
    options: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
    reports = route.run(load_model(model, checkpoint).eval(), spec, where, groups=groups, **options)
    _finish_all(reports, out, as_json)


def xbn(
    model: Model,
    norm: Annotated[str, typer.Option(help="Spec of the new norm, one that does not pool over samples.")] = "gn:64",
    position: Annotated[int, typer.Option(help="Which norm of each block to replace: 1, 2 or 3.")] = 2,
    every: Annotated[int, typer.Option(help="Replace a norm in every nth block: 1, 2, 4 or 8.")] = 1,
    stem: Annotated[bool, typer.Option(help="Also replace the norm before the first block.")] = False,
    checkpoint: Checkpoint = None,
    fit: Fit = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Replace one norm in each residual block of a model (XBNBlock)."""
    from anynorm.io.checkpoints import load_model

    loaded = load_model(model, checkpoint).eval()
    _finish(anynorm.xbn(loaded, norm, position, every, stem, fit=_read_all(fit)), out, as_json)


def fold(
    model: Model,
    data: Data,
    condition: Annotated[int | None, typer.Option(help="Class or domain for which conditional norms are folded.")] = None,
    checkpoint: Checkpoint = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Fold norms, or their γ and β, into the layers around them; the first samples of --data are the example."""
    from anynorm.io.checkpoints import load_model
    from anynorm.io.inputs import read_first_batch
    from anynorm.surgery.batches import call

    loaded = load_model(model, checkpoint).eval()
    _finish(anynorm.fold(loaded, read_first_batch(data), condition=condition, forward=call), out, as_json)


def to_rms(
    model: Model,
    data: Data,
    untie: Annotated[
        bool, typer.Option("--untie", help="Give an embedding that is tied to a classifier its own weight.")
    ] = False,
    checkpoint: Checkpoint = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Turn LayerNorms into RMSNorms with the same output; the first samples of --data are the example."""
    from anynorm.io.checkpoints import load_model
    from anynorm.io.inputs import read_first_batch
    from anynorm.surgery.batches import call

    loaded = load_model(model, checkpoint).eval()
    _finish(anynorm.to_rms(loaded, read_first_batch(data), untie=untie, forward=call), out, as_json)


def recalibrate(
    model: Model,
    data: Data,
    batches: Annotated[int | None, typer.Option(help="Number of batches to use.", show_default="all")] = None,
    batch_size: Annotated[int, typer.Option(help="Samples per batch, if --data is a file or a folder.")] = 64,
    estimator: Annotated[str, typer.Option(help="pooled: moments of all samples; averaged: mean over the batches.")] = "pooled",
    source_weight: Annotated[float, typer.Option(help="Weight of the current statistics, from 0 to 1; 0 replaces them.")] = 0.0,
    checkpoint: Checkpoint = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Re-estimate the running statistics of a model from data."""
    from anynorm.io.checkpoints import load_model
    from anynorm.io.inputs import read_batches

    loaded = load_model(model, checkpoint)
    inputs = read_batches(data, batch_size)
    report = anynorm.recalibrate(loaded, inputs, batches, estimator=estimator, source_weight=source_weight)
    _finish(report, out, as_json)


def _read_all(fit: str | None) -> list[Any] | None:
    """Read all calibration batches; None without --fit."""
    from anynorm.io.inputs import read_batches

    return None if fit is None else list(read_batches(fit))


def _finish(report: Any, out: Path | None, as_json: bool) -> None:
    """Write the changed model and print the report."""
    _write(report, out)
    print_table(report, as_json)


def _finish_all(reports: dict[str, Any], out: Path | None, as_json: bool) -> None:
    """Write the model after the last of several operations and print all reports; as JSON, those after the first by name."""
    first, *others = reports
    _write(list(reports.values())[-1], out)
    if as_json:
        print_json(reports[first].to_dict() | {name: reports[name].to_dict() for name in others})
        return
    for name in [first, *others]:
        print_table(reports[name], as_json)


def _write(report: Any, out: Path | None) -> None:
    if out is not None:
        from anynorm.io.checkpoints import save_model

        save_model(report.model, out)
        report.finding += f" Wrote {out}."
