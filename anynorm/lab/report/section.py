"""The data of one comparison for the report page.

A cell of a table has a text, a value to sort by, and a mark such as "best". A chart has lines of points.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from anynorm.lab.report.pictures import find_pictures
from anynorm.lab.report.results import (
    MIN_SEEDS,
    USUAL_NORM,
    Ranking,
    Row,
    common_metric,
    mean_of,
    metric_of,
    rank,
    recommend,
    result_of,
    row_from_record,
    select,
)
from anynorm.lab.report.robustness import ROBUST_FORMAT, attacks_of, robust_columns
from anynorm.lab.report.step_times import StepTimes
from anynorm.lab.training.config import Config, config_from_dict
from anynorm.lab.training.statistics import LEVEL
from anynorm.lab.training.store import Store
from anynorm.lab.training.task import Metric

Record = dict[str, Any]
Cell = dict[str, Any]


def make_section(records: Sequence[Record], varied: Sequence[str], step_times: StepTimes, store: Store) -> dict[str, Any]:
    """Return the data of the section of one comparison.

    Args:
        records: the records of the runs, with ids.
        varied: the settings in which the runs differ.
        step_times: the step times of the store.
        store: the store of the runs, which has their pictures.
    """
    configs = [config_from_dict(record["config"]) for record in records]
    norms = sorted(dict.fromkeys(config.norm for config in configs), key=lambda norm: norm != USUAL_NORM)
    sizes = sorted({config.batch_size for config in configs})
    shared = {name: value for name, value in asdict(configs[0]).items() if name not in varied}
    default = replace(Config(), data=configs[0].data, model=configs[0].model, task=configs[0].task)
    changed = {name: value for name, value in shared.items() if value != getattr(default, name)}
    lrs = {config.batch_size: config.lr for config in configs}
    rows = [row_from_record(record) for record in records]
    metric = common_metric(rows)
    rankings = {size: rank(rows, size) for size in sizes}
    return {
        "title": _title(configs[0]),
        "metric": {"name": metric.name, "label": f"test {metric.label}"},
        "settings": ", ".join(
            [f"{name} {value}" for name, value in changed.items()]
            + [f"lr {lr:.4g} at batch size {size}" for size, lr in sorted(lrs.items())]
        ),
        "answer": recommend(rows, sizes),
        "norms": norms,
        "results": _results(rows, norms, rankings),
        "significance": _significance(rankings.values(), metric),
        "curves": _curves(records, norms, sizes, metric),
        "pictures": find_pictures(records, norms, sizes, store),
        "shifts": _charts(records, norms, sizes, _shift_points),
        "layers": {layer["place"]: layer["path"] for record in records for layer in record.get("shift") or []},
        "weights": _mixing_weights(records, norms, sizes),
        "cost": _cost(rows, configs, norms, sizes, step_times),
        "runs": _runs(records, metric),
        "config": {name: _text(value) for name, value in shared.items()},
        "provenance": _provenance(records),
    }


def _title(config: Config) -> str:
    return f"{config.model} on {config.data}" if config.task == Config.task else config.task


def _table(columns: Mapping[str, Sequence[Cell]]) -> dict[str, Any]:
    return {"columns": list(columns), "rows": [list(row) for row in zip(*columns.values(), strict=True)]}


def _cell(value: float | str | None, text: str | None = None, mark: str = "") -> Cell:
    """Return a cell that shows `text` and is sorted by `value`."""
    return {"text": _text(value) if text is None else text, "value": value, "mark": mark}


def _metric_cells(values: Sequence[float | None]) -> list[Cell]:
    """Return the cells of a column in which lower is better; the lowest is marked, unless all are equal."""
    numbers = [value for value in values if value is not None]
    best = min(numbers) if len(set(numbers)) > 1 else None
    return [
        _cell(value, "–" if value is None else f"{value:.3g}", "best" if value is not None and value == best else "")
        for value in values
    ]


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _results(rows: list[Row], norms: list[str], rankings: dict[int, Ranking]) -> dict[str, Any]:
    """Return the table of test metric, robust errors and largest estimation shift by norm and batch size."""
    columns = {"norm": [_cell(norm) for norm in norms]}
    for size, ranking in rankings.items():
        columns[f"test {ranking.metric.label}, batch {size}"] = [
            _metric_cell(select(rows, norm, size), norm, ranking) for norm in norms
        ]
    for size in rankings:
        cells = [robust_columns(select(rows, norm, size), attacks_of(rows), size) for norm in norms]
        columns |= {title: [_cell(cell[title].mean, format(cell[title], ROBUST_FORMAT)) for cell in cells] for title in cells[0]}
    for size in rankings:
        shifts = [mean_of(select(rows, norm, size), "max_shift") for norm in norms]
        if any(shift is not None for shift in shifts):
            columns[f"largest shift, batch {size}"] = _metric_cells(shifts)
    return _table(columns)


def _metric_cell(rows: list[Row], norm: str, ranking: Ranking) -> Cell:
    result = result_of(rows)
    mark = "best" if norm == ranking.best else "alike" if ranking.is_tested and norm in ranking.alike else ""
    return _cell(result.mean, format(result, ranking.metric.result_format), "failed" if rows and result.mean is None else mark)


def _significance(rankings: Iterable[Ranking], metric: Metric) -> str:
    best, other = ("highest", "lower") if metric.higher_is_better else ("lowest", "higher")
    legend = f"Test {metric.name}: mean ± sd over seeds. Bold: {best} value of the column."
    if not any(ranking.is_tested for ranking in rankings):
        return f"{legend} Use at least {MIN_SEEDS} seeds for a significance test."
    return f"{legend} *: not significantly {other} (paired t-test over seeds, one-sided, Holm's correction, p ≥ {LEVEL})."


def _cost(
    rows: list[Row], configs: Sequence[Config], norms: list[str], sizes: list[int], step_times: StepTimes
) -> dict[str, Any]:
    """Return the table of milliseconds per step and megabytes saved for backward; columns without values are left out."""
    by_cell = {(config.norm, config.batch_size): config for config in configs}
    columns = {"norm": [_cell(norm) for norm in norms]}
    for size in sizes:
        seconds = [step_times.get(by_cell[norm, size]) if (norm, size) in by_cell else None for norm in norms]
        columns[f"ms per step, batch {size}"] = _metric_cells([None if value is None else 1e3 * value for value in seconds])
    for size in sizes:
        saved = [mean_of(select(rows, norm, size), "saved_bytes") for norm in norms]
        columns[f"MB saved, batch {size}"] = _metric_cells([None if value is None else value / 1e6 for value in saved])
    return _table({title: cells for title, cells in columns.items() if any(cell["value"] is not None for cell in cells)})


def _charts(
    records: Sequence[Record], norms: list[str], sizes: list[int], points: Callable[[Record], list[tuple[float, float]]]
) -> list[dict[str, Any]]:
    """Return one chart per batch size, with one line per norm; a line has points (x, mean, sd) over seeds.

    Args:
        records: the records of the runs.
        norms: the norms, in the order of the page.
        sizes: the batch sizes, in the order of the page.
        points: a function that returns the points (x, y) of a record.
    """
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


def _curves(records: Sequence[Record], norms: list[str], sizes: list[int], metric: Metric) -> list[dict[str, Any]]:
    """Return the charts of every metric: first the test metric of the comparison, then other test metrics, then train metrics."""
    names = {name: None for record in records for point in record["curve"] for name in point if _is_metric(name)}
    own = (f"test_{metric.name}", f"train_{metric.name}")
    curves = []
    for name in sorted(names, key=lambda name: (name != own[0], name.startswith("train_"))):
        kind, _, bare = name.partition("_")
        if charts := _charts(records, norms, sizes, partial(_curve_points, name)):
            curves.append(
                {"kind": kind, "name": bare, "label": f"{kind} {metric.label if name in own else bare}", "charts": charts}
            )
    return curves


def _is_metric(name: str) -> bool:
    return name.startswith(("test_", "train_"))


def _curve_points(name: str, record: Record) -> list[tuple[float, float]]:
    """Return pairs (epoch, value) of a metric, for the evaluations that have it."""
    return [(point["epoch"], point[name]) for point in record["curve"] if point.get(name) is not None]


def _shift_points(record: Record) -> list[tuple[float, float]]:
    return [(layer["place"], layer["shift"]) for layer in record.get("shift") or [] if layer["shift"] is not None]


def _mixing_weights(records: Sequence[Record], norms: list[str], sizes: list[int]) -> list[dict[str, Any]]:
    """Return the learned mixing weights of each layer, from the run with the smallest seed of each norm and batch size."""
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


def _runs(records: Sequence[Record], metric: Metric) -> dict[str, Any]:
    """Return the table of all runs, with a column of the training metric if a run has it."""
    configs = [record["config"] for record in records]
    columns: dict[str, list[Any]] = {
        "run": [record["id"] for record in records],
        "norm": [config["norm"] for config in configs],
        "batch size": [config["batch_size"] for config in configs],
        "seed": [config["seed"] for config in configs],
        "status": [record["status"] for record in records],
        f"test {metric.label}": [record.get(f"test_{metric_of(record).name}") for record in records],
        f"train {metric.label}": [record.get(f"train_{metric_of(record).name}") for record in records],
        "seconds": [record.get("seconds") for record in records],
        "note": [record.get("note", "") for record in records],
    }
    if not any(value is not None for value in columns[f"train {metric.label}"]):
        del columns[f"train {metric.label}"]
    return _table({title: [_cell(value) for value in values] for title, values in columns.items()})


def _provenance(records: Sequence[Record]) -> dict[str, str]:
    """Return the provenance of the runs; if runs differ in an entry, all values, separated by commas."""
    values: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in record["provenance"].items():
            values.setdefault(name, {})[_text(value)] = None
    return {name: ", ".join(texts) for name, texts in values.items()}
