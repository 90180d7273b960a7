"""`anynorm diagnose`: diagnostics of the normalization of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anynorm.cli.options import AsJson, Checkpoint, NormPaths, RunsDir, parse_integers, parse_numbers, print_table


def diagnose(
    model: Annotated[str, typer.Argument(help="package.module:factory, called without arguments, or run:ID of a stored run.")],
    what: Annotated[
        str, typer.Option(help="Diagnostic: shift, adaptation, importance, perturb, fluctuation or gradients.")
    ] = "shift",
    data: Annotated[
        str | None,
        typer.Option(
            help="Folder of images, file of inputs (and labels), or package.module:factory; by default the test set of run:ID.",
        ),
    ] = None,
    checkpoint: Checkpoint = None,
    where: NormPaths = None,
    batches: Annotated[int | None, typer.Option(min=1, help="Number of batches to use; all by default.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per batch, if --data is a file or a folder.")] = 64,
    image_size: Annotated[int, typer.Option(min=1, help="Resize and crop images of a folder to this many pixels.")] = 224,
    mean: Annotated[str, typer.Option(help="Per-channel mean to subtract from images in [0, 1].")] = "0.485,0.456,0.406",
    std: Annotated[str, typer.Option(help="Per-channel standard deviation to divide by.")] = "0.229,0.224,0.225",
    trial_samples: Annotated[
        int,
        typer.Option(min=0, help="shift: number of samples on which norms are corrected one at a time (slow); 0 to skip this."),
    ] = 256,
    deltas: Annotated[str, typer.Option(help="perturb: sizes of the relative noise, comma-separated.")] = "0.1,0.2,0.3,0.4,0.5",
    per: Annotated[str, typer.Option(help="perturb: one random factor per 'layer' or per 'channel'.")] = "layer",
    root: RunsDir = Path("runs"),
    seeds: Annotated[int, typer.Option(min=1, help="perturb: number of draws.")] = 5,
    unlabeled: Annotated[str | None, typer.Option(help="adaptation: data for the new statistics; --data by default.")] = None,
    source_weight: Annotated[float, typer.Option(help="adaptation: weight of the old statistics in the column mixed.")] = 0.5,
    corruptions: Annotated[
        str, typer.Option(help="adaptation: corruptions of the images, of gaussian_noise,gaussian_blur,brightness,contrast.")
    ] = "",
    severities: Annotated[str, typer.Option(help="adaptation: severities of the corruptions, 1 to 5.")] = "1,3,5",
    plot: Annotated[Path | None, typer.Option(help="Write a plot of the report: .png, .pdf or .svg.")] = None,
    as_json: AsJson = False,
) -> None:
    """Diagnose the norms of a model: wrong running statistics, sensitivity to them, learned mixing weights, and more."""
    from anynorm.cli.plugins import load_trained
    from anynorm.cli.run_diagnostic import DiagnoseArgs, run_diagnostic
    from anynorm.io.checkpoints import load_model
    from anynorm.io.inputs import ImageTransform, read_batches

    if plot is not None:
        from anynorm.draw import check_picture, save

        check_picture(plot)
    standardization = {"mean": parse_numbers("--mean", mean), "std": parse_numbers("--std", std)}
    images = ImageTransform(image_size, **standardization)
    inputs = None if data is None else read_batches(data, batch_size, images)
    trained = load_trained(model, root)
    if trained is None:
        network = load_model(model, checkpoint)
    else:
        network = trained.network
        if inputs is None:
            inputs, standardization = trained.batches(batch_size), standardization | trained.standardization
    args = DiagnoseArgs(
        network,
        inputs,
        where=where,
        num_batches=batches,
        trial_samples=trial_samples,
        deltas=parse_numbers("--deltas", deltas),
        per=per,
        seeds=seeds,
        unlabeled=None if unlabeled is None else read_batches(unlabeled, batch_size, images),
        source_weight=source_weight,
        corruptions=corruptions.split(",") if corruptions else (),
        severities=parse_integers("--severities", severities, "1,3,5"),
        **standardization,
    )
    report = run_diagnostic(what, args)
    if plot is not None:
        save(report, plot)
        report.finding += f" Wrote {plot}."
    print_table(report, as_json)
