"""`anynorm runs`: list, show, compare and delete the runs of a store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from anynorm.cli.options import AsJson, RunsDir, print_json, print_table
from anynorm.errors import DataError
from anynorm.table import pluralize

if TYPE_CHECKING:
    from anynorm.lab.training.store import Store

app = typer.Typer(help="List, show, compare and delete training runs.", no_args_is_help=True)

_COLUMNS = ("data", "model", "norm", "batch_size", "seed")
_LISTED = ("id", "status", "metric", "value", "note", "config", "updated")
_RESULTS = ("status", "steps", "seconds", "parameters", "saved_bytes")


@app.command("list")
def list_(root: RunsDir = Path("runs"), as_json: AsJson = False) -> None:
    """List all runs, the newest last."""
    from anynorm.lab.training.config import Config
    from anynorm.table import Table

    runs = _open(root).runs()
    if as_json:
        print_json([{name: getattr(run, name) for name in _LISTED} for run in runs])
        return
    default = Config()
    lines = []
    for run in runs:
        others = [f"{name}={value}" for name, value in run.config.items() if value != getattr(default, name, None)]
        lines.append(
            {
                "id": run.id,
                "status": run.status,
                "task": run.config.get("task", default.task),
                **{name: run.config[name] for name in _COLUMNS},
                "metric": run.metric,
                "test value": run.value,
                "other settings": ", ".join(text for text in others if text.partition("=")[0] not in ("task", *_COLUMNS)),
                "note": run.note,
            }
        )
    print_table(Table(lines, f"{pluralize(len(lines), 'run')} in {root}."), as_json=False)


@app.command()
def show(run: str, root: RunsDir = Path("runs")) -> None:
    """Print the record of a run as JSON: configuration, results, curve, artifacts, versions and hardware."""
    store = _open(root)
    print_json(store.record(run).to_dict() | {"artifacts": store.artifacts(run)})


@app.command()
def diff(first: str, second: str, root: RunsDir = Path("runs"), as_json: AsJson = False) -> None:
    """Print the settings and results in which two runs differ."""
    from anynorm.table import Table

    store = _open(root)
    a, b = store.record(first), store.record(second)
    pairs = {name: (a.config.get(name), b.config.get(name)) for name in a.config}
    pairs |= {name: (getattr(a, name), getattr(b, name)) for name in _RESULTS}
    pairs |= {name: (a.metrics.get(name), b.metrics.get(name)) for name in {**a.metrics, **b.metrics}}
    rows = [{"name": name, a.id: x, b.id: y} for name, (x, y) in pairs.items() if x != y]
    print_table(Table(rows, f"{pluralize(len(rows), 'difference')}."), as_json)


@app.command()
def rm(runs: list[str], root: RunsDir = Path("runs")) -> None:
    """Delete runs, given by their ids or the first characters of their ids; if one does not exist, none is deleted."""
    store = _open(root)
    for run in [store.find(name) for name in runs]:
        sys.stdout.write(f"Deleted run {store.remove(run)}.\n")


def _open(root: Path) -> Store:
    from anynorm.lab.training.store import Store

    if not root.is_dir():
        raise DataError(f"--runs must be a folder of runs; {root} does not exist. Run `anynorm compare` first.")
    return Store(root)
