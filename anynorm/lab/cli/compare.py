"""`anynorm compare` and `anynorm report`: comparison of norms, as a table and as an HTML page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from anynorm.cli.options import AsJson, Device, Executor, Logger, RunsDir, parse_integers, print_table
from anynorm.errors import SpecError
from anynorm.lab.cli.task_options import parse_flags
from anynorm.lab.required_packages import require_packages
from anynorm.lab.tasks import TASKS, task_class
from anynorm.table import pluralize


def compare(
    ctx: typer.Context,
    task: Annotated[
        str,
        typer.Option(
            help=f"Task to train: {', '.join(TASKS)} or package.module:Task. `--task NAME --help` also lists the flags of the "
            "options of this task, such as --attack pgd:4 for classification."
        ),
    ] = "classification",
    data: Annotated[
        str | None,
        typer.Option(
            help="Data set: digits (the default), mnist, fashion-mnist, cifar10, cifar100; folder:PATH (in memory), stream:PATH "
            "or hf:NAME (decoded while training); or package.module:factory."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model: mlp, small, resnet10 (the default), resnet18, resnet26, resnet50, resnet101, resnext50, resnext101, "
            "wrn-10-2, preact_resnet8, preact_resnet18, resnet12, mobilenetv2, shufflenetv2, densenet121, convnext, vit, "
            "nasbench201:CELL, darts:GENOTYPE or package.module:factory. For searches: nasbench201, nasbench201.n1, darts. "
            "For generation: sngan (the default), biggan, autogan or package.module:factory."
        ),
    ] = None,
    norms: Annotated[
        str | None,
        typer.Option(
            help="Norm specs, comma-separated; gn:4~bn alternates gn:4 and bn, xbn=gn:64 converts residual blocks to XBNBlocks, "
            "and K in sabn@K is the number of classes. bn,gn:8,sn,hn,bgn by default; for generation ccbn@K,sabn@K."
        ),
    ] = None,
    batch_sizes: Annotated[
        str | None, typer.Option(help="Samples per batch, comma-separated; 2,32 by default, 32 for generation.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds; at least 3 for a significance test.")] = 5,
    epochs: Annotated[int | None, typer.Option(min=1, help="Number of epochs per run; 2 by default, 20 for generation.")] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Approximate total time of all runs, in minutes; sets the number of epochs instead of --epochs."),
    ] = None,
    num_train: Annotated[
        int | None, typer.Option(min=1, help="Number of training images, a random subset given by the seed; all by default.")
    ] = None,
    width: Annotated[float | None, typer.Option(help="Width multiplier of the model.")] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate at batch size 32; 0.05 by default, 2e-4 for generation.")
    ] = None,
    lr_scaling: Annotated[
        str | None,
        typer.Option(
            help="Scaling of the learning rate with the batch size: linear (the default), sqrt, or none (for generation)."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Another setting of the runs or of the task, such as weight_decay=0; can be repeated.",
        ),
    ] = None,
    device: Device = "auto",
    devices: Annotated[int, typer.Option(min=1, help="Number of devices per machine for each run (data parallel).")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Number of machines for each run (data parallel).")] = 1,
    precision: Annotated[str, typer.Option(help="32, bf16-mixed or 16-mixed.")] = "32",
    num_workers: Annotated[int, typer.Option(min=0, help="Number of processes per run that decode streamed images.")] = 1,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Number of parallel runs; by default one per GPU, or one per core with one thread each."),
    ] = None,
    logger: Logger = None,
    executor: Executor = "local",
    skip_unreadable: Annotated[
        bool,
        typer.Option("--skip-unreadable", help="Skip image files that cannot be decoded, instead of stopping with an error."),
    ] = False,
    root: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Train a model with each norm at each batch size, recommend a norm, and write report.html to the directory of the runs.

    Finished runs are not trained again; run the command again to resume an interrupted comparison.
    """
    require_packages("compare")
    from anynorm.lab.cli.live import print_comparison, watch
    from anynorm.lab.comparison.compare import make_comparison
    from anynorm.lab.training.devices import Hardware, launch_processes
    from anynorm.lab.training.distributed import Processes
    from anynorm.lab.training.norm_layout import split_norms

    hardware = Hardware(device, nodes, num_workers, logger)
    options: dict[str, Any] = {
        "task": task,
        "data": data,
        "model": model,
        "epochs": epochs,
        "num_train": num_train,
        "width": width,
    }
    options |= {"precision": precision, "devices": devices * nodes, "skip_unreadable": skip_unreadable}
    options |= {"seeds": seeds, "lr": lr, "lr_scaling": lr_scaling}
    options["norms"] = None if norms is None else split_norms(norms)
    options["batch_sizes"] = None if batch_sizes is None else list(parse_integers("--batch-sizes", batch_sizes, "2,32"))
    options |= parse_flags(ctx.args, task_class(task).options_class) | _parse_settings(settings or [], task)
    comparison = make_comparison(options, root, hardware)
    base = comparison.base
    launch_processes(base, hardware)
    if minutes is not None:
        comparison = comparison.fit_budget(minutes, processes)
    records = comparison.read()
    new_records = comparison.run(records, processes, executor)
    is_main = Processes(base.devices).is_main
    try:
        records += watch(comparison, records, new_records) if is_main else new_records
    except KeyboardInterrupt:
        sys.stderr.write("Stopped. Run the same command again to resume.\n")
        raise
    if not is_main:
        return
    table = comparison.table(records)
    if as_json:
        print_table(table, as_json)
    else:
        print_comparison(table)
    _write_report(root, root / "report.html", file=sys.stderr if as_json else sys.stdout)
    if records and not any(record.done for record in records):
        sys.stderr.write(f"Every run failed; the first one: {records[0].note}\n")
        raise typer.Exit(1)


def report(
    root: Annotated[Path, typer.Argument(help="The folder of the runs.")] = Path("runs"),
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write a report of the runs of a folder: one self-contained HTML page."""
    _write_report(root, out, file=sys.stdout)


def _write_report(root: Path, path: Path, file: Any) -> None:
    from anynorm.lab.report.page import write_page

    num_runs, omitted = write_page(root, path)
    for reason in omitted:
        sys.stderr.write(f"Omitted from the report: {reason}\n")
    file.write(f"Wrote {path} ({pluralize(num_runs, 'run')}).\n")


def _parse_settings(texts: list[str], task: str) -> dict[str, Any]:
    """Parse NAME=VALUE strings; the type of each value is that of the field of `Config` or of the options of the task."""
    from anynorm.lab.training.config import Config, config_from_dict
    from anynorm.lab.training.value_types import describe_type, field_types, parse_value

    types = {**field_types(task_class(task).options_class), **field_types(Config)}
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise SpecError(f"--set must be NAME=VALUE, such as flip=true; got {text!r}.")
        if name not in types or name == "options":
            config_from_dict({name: value}, types)  # raises an error that names the nearest setting
        try:
            settings[name] = parse_value(types[name], value)
        except ValueError:
            raise SpecError(f"--set {name} must be {describe_type(types[name])}; got {value!r}.") from None
    return settings
