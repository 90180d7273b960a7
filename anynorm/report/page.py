"""A store of runs as one page that needs nothing else: tables that sort, curves that can be pointed at, profiles, provenance."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from anynorm.compare import Plan, recommend, told
from anynorm.errors import DataError
from anynorm.table import json_safe
from anynorm.training.config import Config, config_from_dict
from anynorm.training.provenance import provenance
from anynorm.training.store import ENDED, Store

Record = dict[str, Any]
_VARIED = ("norm", "batch_size", "seed", "rate")
RUN_COLUMNS = ["run", "norm", "batch size", "seed", "status", "test error %", "train error %", "seconds", "note"]


def write_page(root: Path, path: Path) -> tuple[int, list[str]]:
    """Write the page of a store; give how many runs are on it, and what was left out, with the reason."""
    if not root.is_dir():
        raise DataError(f"There is no folder {root} of runs. Run `anynorm compare` first.")
    store = Store(root)
    records, left_out = [], []
    for row in store.rows():
        if row["status"] not in ENDED:
            left_out.append(f"{row['id']}: {row['status']}")
            continue
        try:
            records.append({"id": row["id"], **store.record(row["id"])})
        except DataError as error:
            left_out.append(str(error))
    if not records:
        raise DataError(f"{root} has no run that has ended: there is nothing to tell. Run `anynorm compare` first.")
    groups: dict[str, list[Record]] = {}
    rates: dict[str, dict[int, float]] = {}
    for record in records:
        shared = {key: value for key, value in record["config"].items() if key not in _VARIED}
        name = json.dumps(shared, sort_keys=True)
        size, rate = record["config"]["batch_size"], record["config"]["lr"]
        while rates.setdefault(name, {}).setdefault(size, rate) != rate:  # another rate at this batch size: another comparison
            name += "'"
        groups.setdefault(name, []).append(record)
    made = provenance()
    data = {
        "made": f"{len(records)} runs, anynorm commit {made['commit']}, torch {made['torch']}, {made['hardware']}",
        "groups": [_group(some) for some in groups.values()],
        "run_columns": [{"key": name, "title": name} for name in RUN_COLUMNS],
    }
    text = Path(__file__).with_name("page.html").read_text()
    inside = json.dumps(json_safe(data), allow_nan=False).replace("<", "\\u003c")  # a text in the data cannot end the script
    if not path.absolute().parent.is_dir():
        raise DataError(f"There is no folder {path.parent} to write {path.name} into.")
    path.write_text(text.replace("/*DATA*/", inside))
    return len(records), left_out


def _group(records: list[Record]) -> dict[str, Any]:
    """Tell of runs that differ in norm, batch size and seed alone."""
    configs = [config_from_dict(record["config"]) for record in records]
    norms = sorted(dict.fromkeys(config.norm for config in configs), key=lambda norm: norm != "bn")
    sizes = sorted({config.batch_size for config in configs})
    by_cell: dict[tuple[str, int], list[Record]] = {}
    for record in sorted(records, key=lambda record: record["config"]["seed"]):
        by_cell.setdefault((record["config"]["norm"], record["config"]["batch_size"]), []).append(record)
    plan = Plan(configs[0], norms, sizes, seeds=1 + max(config.seed for config in configs))
    usual = replace(Config(), data=configs[0].data, model=configs[0].model)
    shared = {key: value for key, value in records[0]["config"].items() if key not in _VARIED}
    other = {key: value for key, value in shared.items() if value != getattr(usual, key)}
    columns = [{"key": "norm", "title": "norm"}, *({"key": str(size), "title": f"error %, batch {size}"} for size in sizes)]
    return {
        "title": f"{configs[0].model} on {configs[0].data}",
        "settings": ", ".join(f"{key} {value}" for key, value in other.items()) or "usual settings",
        "finding": " ".join(recommend(plan, by_cell, size) for size in sizes),
        "norms": norms,
        "columns": columns,
        "rows": [_row(norm, norms, sizes, by_cell) for norm in norms],
        "curves": [{"batch": size, "lines": _curves(norms, size, by_cell)} for size in sizes],
        "shifts": [found for size in sizes if (found := {"batch": size, "lines": _shifts(norms, size, by_cell)})["lines"]],
        "importance": _importance(norms, sizes, by_cell),
        "runs": [_run(record) for record in records],
        "config": shared,
        "provenance": [json.loads(text) for text in dict.fromkeys(json.dumps(record["provenance"]) for record in records)],
    }


def _row(norm: str, norms: list[str], sizes: list[int], by_cell: dict[tuple[str, int], list[Record]]) -> dict[str, Any]:
    row: dict[str, Any] = {"norm": {"text": norm}}
    for size in sizes:
        means = {one: _mean(by_cell.get((one, size), [])) for one in norms}
        whole = {one: mean for one, mean in means.items() if all(run["status"] == "done" for run in by_cell.get((one, size), []))}
        known = [mean for mean in whole.values() if mean is not None]
        best = whole.get(norm) is not None and whole[norm] == min(known)
        cell = by_cell.get((norm, size), [])
        mark = "best" if best else "failed" if cell and means[norm] is None else ""
        row[str(size)] = {"text": told(cell), "value": means[norm], "mark": mark}
    return row


def _mean(records: list[Record]) -> float | None:
    errors = [record["test_error"] for record in records if record["status"] == "done"]
    return statistics.fmean(errors) if errors else None


def _curves(norms: list[str], size: int, by_cell: dict[tuple[str, int], list[Record]]) -> list[dict[str, Any]]:
    lines = []
    for norm in norms:
        points: dict[float, list[float]] = {}
        for record in by_cell.get((norm, size), []):
            for point in record["curve"]:
                points.setdefault(point["epoch"], []).append(point["test_error"])
        if points:
            lines.append(
                {"name": norm, "num_evals": [[epoch, statistics.fmean(errors)] for epoch, errors in sorted(points.items())]}
            )
    return lines


def _shifts(norms: list[str], size: int, by_cell: dict[tuple[str, int], list[Record]]) -> list[dict[str, Any]]:
    """Give the shift of each norm of a network, the mean of the seeds, where statistics are kept."""
    lines = []
    for norm in norms:
        profiles = [record["shift"] for record in by_cell.get((norm, size), []) if record.get("shift")]
        points: dict[int, list[float]] = {}
        for row in (row for profile in profiles for row in profile if row["shift"] is not None):
            points.setdefault(row["place"], []).append(row["shift"])
        if points:
            lines.append(
                {"name": norm, "num_evals": [[place, statistics.fmean(values)] for place, values in sorted(points.items())]}
            )
    return lines


def _importance(norms: Iterable[str], sizes: Iterable[int], by_cell: dict[tuple[str, int], list[Record]]) -> list[dict[str, Any]]:
    """Give the weights of mixed norms in the run of the first seed."""
    found = []
    for norm in norms:
        for size in sizes:
            weights = next((record["importance"] for record in by_cell.get((norm, size), []) if record.get("importance")), None)
            if weights:
                rows = [{"path": row["path"], "mean": _side(row, "mean_"), "var": _side(row, "var_")} for row in weights]
                found.append({"norm": norm, "batch": size, "rows": rows})
    return found


def _side(row: dict[str, Any], prefix: str) -> dict[str, float]:
    return {key.removeprefix(prefix): value for key, value in row.items() if key.startswith(prefix)}


def _run(record: Record) -> dict[str, Any]:
    config = record["config"]
    values = [record["id"], config["norm"], config["batch_size"], config["seed"], record["status"]]
    values += [record.get("test_error"), record.get("train_error"), record.get("seconds"), record.get("note", "")]
    return {name: _shown(value) for name, value in zip(RUN_COLUMNS, values, strict=True)}


def _shown(value: Any) -> dict[str, Any]:
    return (
        {"text": "", "value": None}
        if value is None
        else {"text": f"{value:.4g}" if isinstance(value, float) else str(value), "value": value}
    )
