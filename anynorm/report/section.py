"""One comparison as data for the report page: tables as cells with text, sort value and mark; charts as points."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from anynorm.report.results import USUAL_NORM, Ranking, format_errors, mean_of, rank, recommend, row_from_record, select
from anynorm.report.step_times import StepTimes
from anynorm.training.config import Config, config_from_dict
from anynorm.training.statistics import LEVEL

Record = dict[str, Any]
Cell = dict[str, Any]
RUN_COLUMNS = ("run", "norm", "batch size", "seed", "status", "test error %", "train error %", "seconds", "note")


def make_section(records: Sequence[Record], varied: Sequence[str], step_times: StepTimes) -> dict[str, Any]:
    """Return the data of one comparison.

    Args:
        records: its runs with their ids.
        varied: the settings in which they differ.
        step_times: the step times of the store.
    """
    configs = [config_from_dict(record["config"]) for record in records]
    norms = sorted(dict.fromkeys(config.norm for config in configs), key=lambda norm: norm != USUAL_NORM)
    sizes = sorted({config.batch_size for config in configs})
    shared = {name: value for name, value in records[0]["config"].items() if name not in varied}
    default = replace(Config(), data=configs[0].data, model=configs[0].model)
    changed = {name: value for name, value in shared.items() if value != getattr(default, name)}
    lrs = {config.batch_size: config.lr for config in configs}
    rows = [row_from_record(record) for record in records]
    rankings = {size: rank(rows, size) for size in sizes}
    return {
        "title": f"{configs[0].model} on {configs[0].data}",
        "settings": ", ".join(
            [f"{name} {value}" for name, value in changed.items()]
            + [f"lr {lr:.4g} at batch size {size}" for size, lr in sorted(lrs.items())]
        ),
        "answer": recommend(rows, sizes),
        "norms": norms,
        "results": _results(rows, norms, rankings),
        "significance": _significance(rankings.values()),
        "curves": _charts(records, norms, sizes, _curve_points),
        "shifts": _charts(records, norms, sizes, _shift_points),
        "layers": {layer["place"]: layer["path"] for record in records for layer in record.get("shift") or []},
        "weights": _mixing_weights(records, norms, sizes),
        "cost": _cost(rows, configs, norms, sizes, step_times),
        "runs": _table(RUN_COLUMNS, [_run_cells(record) for record in records]),
        "config": {name: _text(value) for name, value in shared.items()},
        "provenance": _provenance(records),
    }


def _table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> dict[str, Any]:
    return {"columns": list(columns), "rows": list(rows)}


def _cell(value: float | str | None, text: str | None = None, mark: str = "") -> Cell:
    """Return a cell that shows `text` and is sorted by `value`."""
    return {"text": _text(value) if text is None else text, "value": value, "mark": mark}


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _results(rows: list[dict[str, Any]], norms: list[str], rankings: dict[int, Ranking]) -> dict[str, Any]:
    """Return test error and largest estimation shift by norm and batch size."""
    lines = []
    for norm in norms:
        line = [_cell(norm)]
        for size, ranking in rankings.items():
            cell = select(rows, norm, size)
            mark = "best" if norm == ranking.best else "alike" if ranking.is_tested and norm in ranking.alike else ""
            mean = mean_of(cell, "test_error")
            line.append(_cell(mean, format_errors(cell), "failed" if cell and mean is None else mark))
        lines.append(line + [_cell(mean_of(select(rows, norm, size), "max_shift")) for size in rankings])
    titles = [f"{title}, batch {size}" for title in ("test error %", "largest shift") for size in rankings]
    return _table(["norm", *titles], lines)


def _significance(rankings: Iterable[Ranking]) -> str:
    legend = "Test error: mean ± sd over seeds. Bold: lowest mean error of the column."
    if not any(ranking.is_tested for ranking in rankings):
        return f"{legend} Use at least 3 seeds for a significance test."
    return f"{legend} *: not significantly higher (paired t-test over seeds, one-sided, Holm's correction, p ≥ {LEVEL})."


def _cost(
    rows: list[dict[str, Any]], configs: Sequence[Config], norms: list[str], sizes: list[int], times: StepTimes
) -> dict[str, Any]:
    """Return milliseconds per training step and megabytes saved for backward by norm and batch size."""
    lines = []
    by_cell = {(config.norm, config.batch_size): config for config in configs}
    for norm in norms:
        seconds = [times.get(by_cell[norm, size]) if (norm, size) in by_cell else None for size in sizes]
        saved = [mean_of(select(rows, norm, size), "saved_bytes") for size in sizes]
        line = [_cell(norm), *(_cell(None if value is None else round(1e3 * value, 2)) for value in seconds)]
        lines.append(line + [_cell(None if value is None else round(value / 1e6, 3)) for value in saved])
    titles = [f"{title}, batch {size}" for title in ("ms per step", "MB saved") for size in sizes]
    used = [k for k in range(len(titles) + 1) if any(line[k]["value"] is not None for line in lines)]
    return _table([["norm", *titles][k] for k in used], [[line[k] for k in used] for line in lines])


def _charts(
    records: Sequence[Record], norms: list[str], sizes: list[int], points: Callable[[Record], list[tuple[float, float]]]
) -> list[dict[str, Any]]:
    """Return one chart per batch size; each of its lines has points (x, mean, sd) over the seeds of a norm."""
    charts = []
    for size in sizes:
        lines = []
        for norm in norms:
            values: dict[float, list[float]] = {}
            for record in records:
                if (record["config"]["norm"], record["config"]["batch_size"]) == (norm, size):
                    for x, y in points(record):
                        values.setdefault(x, []).append(y)
            if values:
                spread = [
                    (x, statistics.fmean(ys), statistics.stdev(ys) if len(ys) > 1 else 0.0) for x, ys in sorted(values.items())
                ]
                lines.append({"name": norm, "points": spread})
        if lines:
            charts.append({"batch_size": size, "lines": lines})
    return charts


def _curve_points(record: Record) -> list[tuple[float, float]]:
    return [(point["epoch"], point["test_error"]) for point in record["curve"]]


def _shift_points(record: Record) -> list[tuple[float, float]]:
    return [(layer["place"], layer["shift"]) for layer in record.get("shift") or [] if layer["shift"] is not None]


def _mixing_weights(records: Sequence[Record], norms: list[str], sizes: list[int]) -> list[dict[str, Any]]:
    """Return the learned weights of mixed norms, layer by layer, in the run of the first seed."""
    first: dict[tuple[str, int], Record] = {}
    for record in sorted(records, key=lambda record: -record["config"]["seed"]):
        if record.get("importance"):
            first[record["config"]["norm"], record["config"]["batch_size"]] = record
    return [
        {
            "title": f"{norm}, batch size {size}, seed {first[norm, size]['config']['seed']}",
            "layers": [
                {"path": layer["path"], "mean": _weights(layer, "mean_"), "var": _weights(layer, "var_")}
                for layer in first[norm, size]["importance"]
            ],
        }
        for norm in norms
        for size in sizes
        if (norm, size) in first
    ]


def _weights(layer: dict[str, Any], prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in layer.items() if name.startswith(prefix)}


def _run_cells(record: Record) -> list[Cell]:
    config = record["config"]
    settings = [record["id"], config["norm"], config["batch_size"], config["seed"], record["status"]]
    results = [record.get("test_error"), record.get("train_error"), record.get("seconds"), record.get("note", "")]
    return [_cell(value) for value in (*settings, *results)]


def _provenance(records: Sequence[Record]) -> dict[str, str]:
    """Return versions and hardware of the runs; where runs differ, all values."""
    values: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in record["provenance"].items():
            values.setdefault(name, {})[_text(value)] = None
    return {name: ", ".join(texts) for name, texts in values.items()}
