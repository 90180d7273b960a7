"""`anynorm compare` and `anynorm runs`: which norm suits a model, and what was run to find out."""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from anynorm.cli.options import AsJson, Executor, RunsDir, print_json, print_report
from anynorm.errors import SpecError

runs = typer.Typer(help="Look at runs: list, show, diff, rm.", no_args_is_help=True)


def compare(
    data: Annotated[
        str, typer.Option(help="digits, mnist, fashion-mnist, cifar10, cifar100, folder:PATH or module:factory.")
    ] = "digits",
    model: Annotated[
        str,
        typer.Option(
            help="mlp, small, resnet10, resnet18, resnet26, resnet50, resnext50, wrn-10-2, mobilenetv2, shufflenetv2, "
            "densenet121 or module:factory."
        ),
    ] = "mlp",
    norms: Annotated[str, typer.Option(help="Norms; gn:4~bn takes turns, xbn=gn:64 makes XBNBlocks.")] = "bn,gn:4~bn,sn,hn,bgn",
    batch_sizes: Annotated[str, typer.Option(help="Samples a batch.")] = "4,32",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 5,
    epochs: Annotated[int | None, typer.Option(min=1, help="How long each run trains.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="How long all runs together may take, about, instead of --epochs.")
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(min=1, help="How many training images, chosen by the seed; all, if not given (of the default pair: 128)."),
    ] = None,
    width: Annotated[float | None, typer.Option(help="Of the model, relative to its own.")] = None,
    rate: Annotated[float | None, typer.Option(help="The learning rate at batch 32.")] = None,
    lr_scaling: Annotated[str, typer.Option(help="How it follows the batch size: linear, sqrt or none.")] = "linear",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Other settings of runs, such as flip=true or weight_decay=0.")
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="How many at once; by default as many as cores.")] = None,
    executor: Executor = "local",
    skip_unreadable: Annotated[
        bool, typer.Option(help="Leave out images of a folder that cannot be read, instead of stopping.")
    ] = False,
    root: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Compare norms on a model and data, and say which to take."""
    from anynorm.cli.live import watch
    from anynorm.compare import Plan, base_of, fit_budget, missing, run_all, summary
    from anynorm.training.norm_layout import split_norms

    given = {"data": data, "model": model, "epochs": epochs, "num_train": images, "width": width, "lr": rate}
    given["skip_unreadable"] = skip_unreadable or None
    base = {name: value for name, value in given.items() if value is not None} | _settings(settings or [])
    sizes = _whole_numbers("--batch-sizes", batch_sizes)
    plan = Plan(base_of(base), split_norms(norms), sizes, seeds, lr_scaling, root)
    if minutes is not None:
        plan = fit_budget(plan, minutes, processes)
    try:
        watch(plan, run_all(plan, processes, executor), len(missing(plan)))
    except KeyboardInterrupt:
        sys.stderr.write("Stopped. The same command goes on where it was.\n")
        raise
    if os.environ.get("RANK", "0") == "0":
        print_report(summary(plan), as_json)


def report(
    root: Annotated[Path, typer.Argument(help="The folder that runs are kept in.")] = Path("runs"),
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the page goes.")] = Path("report.html"),
) -> None:
    """Write the runs of a folder as one page that needs nothing else."""
    from anynorm.report.page import write_page

    count, left_out = write_page(root, out)
    for reason in left_out:
        sys.stderr.write(f"left out: {reason}\n")
    sys.stdout.write(f"{count} runs are told in {out}.\n")


def _settings(texts: list[str]) -> dict[str, Any]:
    """Read NAME=VALUE, each value as what its name wants."""
    from anynorm.training.config import Config, config_from_dict

    kinds = {field.name: _KINDS[str(field.type).partition(" |")[0]] for field in fields(Config)}
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise SpecError(f"--set {text!r} sets nothing; write NAME=VALUE, such as flip=true.")
        config_from_dict({name: getattr(Config(), name, None)})  # says which names there are
        kind = kinds[name]
        try:
            found[name] = _SWITCH[value.lower()] if kind is bool else kind(value)
        except (KeyError, ValueError):
            wanted = "true or false" if kind is bool else {"int": "a whole number", "float": "a number"}[kind.__name__]
            raise SpecError(f"--set {text!r}: {value!r} is not {wanted}.") from None
    return found


_KINDS: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
_SWITCH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _whole_numbers(option: str, text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise SpecError(f"{option} {text!r} are no whole numbers; write them with commas between, such as 2,32.") from None


@runs.command("list")
def list_(root: RunsDir = Path("runs"), as_json: AsJson = False) -> None:
    """List all runs, the newest last."""
    from anynorm.table import Table
    from anynorm.training.config import Config
    from anynorm.training.store import Store

    rows = Store(root).rows()
    if as_json:
        print_json(rows)
        return
    usual = Config()
    lines = []
    for row in rows:
        other = {key: value for key, value in row["config"].items() if value != getattr(usual, key, None) and key not in _SHOWN}
        line = {"id": row["id"], "status": row["status"], **{key: row["config"][key] for key in _SHOWN}, "error %": row["error"]}
        lines.append(line | {"other settings": ", ".join(f"{key}={value}" for key, value in other.items()), "note": row["note"]})
    print_report(Table(lines, f"{len(lines)} runs in {root}."), as_json=False)


_SHOWN = ("data", "model", "norm", "batch_size", "seed")


@runs.command()
def show(run: str, root: RunsDir = Path("runs")) -> None:
    """Print the whole record of a run."""
    from anynorm.training.store import Store

    print_json(Store(root).record(run))


@runs.command()
def diff(first: str, second: str, root: RunsDir = Path("runs"), as_json: AsJson = False) -> None:
    """Tell in which settings and results two runs differ."""
    from anynorm.table import Table
    from anynorm.training.store import Store

    store = Store(root)
    a, b = store.record(first), store.record(second)
    names = ("status", "test_error", "train_error", "steps", "seconds", "parameters", "saved_bytes")
    pairs = {
        **{key: (a["config"].get(key), b["config"].get(key)) for key in a["config"]},
        **{key: (a.get(key), b.get(key)) for key in names},
    }
    rows = [{"what": key, store.find(first): x, store.find(second): y} for key, (x, y) in pairs.items() if x != y]
    print_report(Table(rows, f"{len(rows)} differences."), as_json)


@runs.command()
def rm(run: list[str], root: RunsDir = Path("runs")) -> None:
    """Forget runs, by their ids or the beginnings of them."""
    from anynorm.training.store import Store

    store = Store(root)
    for one in [store.find(name) for name in run]:  # all of them are there, before the first goes
        sys.stdout.write(f"{store.remove(one)} is forgotten.\n")
