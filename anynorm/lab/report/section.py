"""The section of one comparison on the report page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from anynorm.lab.comparison.ranking import MIN_SEEDS, USUAL_NORM
from anynorm.lab.comparison.results import Results
from anynorm.lab.comparison.robustness import ROBUST_FORMAT, robust_results
from anynorm.lab.comparison.step_times import StepTimes
from anynorm.lab.report.charts import make_curves, make_shifts, make_weights
from anynorm.lab.report.page_data import Cell, PageTable, Section, text_of
from anynorm.lab.report.pictures import find_pictures
from anynorm.lab.training.config import Config, config_from_dict
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.significance import LEVEL
from anynorm.lab.training.store import Store


def make_section(records: Sequence[RunRecord], varied: Sequence[str], step_times: StepTimes, store: Store) -> Section:
    """Return the section of one comparison.

    Args:
        records: the records of the runs.
        varied: the settings in which the runs differ.
        step_times: the step times of the store.
        store: the store of the runs, which has their pictures.
    """
    configs = [config_from_dict(dict(record.config)) for record in records]
    norms = sorted(dict.fromkeys(config.norm for config in configs), key=lambda norm: norm != USUAL_NORM)
    results = Results(records, norms, sorted({config.batch_size for config in configs}))
    shared = {name: value for name, value in asdict(configs[0]).items() if name not in varied}
    return Section(
        title=_title(configs[0]),
        settings=_settings(configs, varied),
        answer=results.recommendation,
        norms=norms,
        results=_results(results),
        significance=_significance(results),
        curves=make_curves(results),
        pictures=find_pictures(results, store),
        shifts=make_shifts(results),
        layers={layer.position: layer.path for record in records for layer in record.shift or ()},
        weights=make_weights(results),
        cost=_cost(results, configs, step_times),
        runs=_runs(results),
        config={name: text_of(value) for name, value in shared.items()},
        provenance=_provenance(records),
    )


def _title(config: Config) -> str:
    return f"{config.model} on {config.data}" if config.task == Config.task else config.task


def _settings(configs: Sequence[Config], varied: Sequence[str]) -> str:
    """Return the settings of all runs that are not those of a new configuration, and the learning rates."""
    first = configs[0]
    default = replace(Config(), data=first.data, model=first.model, task=first.task)
    changed = [
        f"{name} {value}" for name, value in asdict(first).items() if name not in varied and value != getattr(default, name)
    ]
    lrs = {config.batch_size: config.lr for config in configs}
    return ", ".join([*changed, *(f"lr {lr:.4g} at batch size {size}" for size, lr in sorted(lrs.items()))])


def _lowest_is_best(values: Sequence[float | None]) -> list[Cell]:
    """Return the cells of a column in which lower is better; the lowest is marked, unless all are equal."""
    numbers = [value for value in values if value is not None]
    best = min(numbers) if len(set(numbers)) > 1 else None
    return [
        Cell("–", None) if value is None else Cell(f"{value:.3g}", value, "best" if value == best else "") for value in values
    ]


def _results(results: Results) -> PageTable:
    """Return the table of test metric, robust errors and largest estimation shift by norm and batch size."""
    columns = {"norm": [Cell.of(norm) for norm in results.norms]}
    for size in results.batch_sizes:
        columns[f"test {results.metric.label}, batch {size}"] = [_metric_cell(results, norm, size) for norm in results.norms]
    for size in results.batch_sizes:
        for norm in results.norms:
            for quantity, result in robust_results(results.cell(norm, size), results.attacks).items():
                cell = Cell(format(result, ROBUST_FORMAT), result.mean)
                columns.setdefault(f"{quantity}, batch {size}", []).append(cell)
    for size in results.batch_sizes:
        shifts = [results.mean(norm, size, lambda record: record.max_shift) for norm in results.norms]
        if any(shift is not None for shift in shifts):
            columns[f"largest shift, batch {size}"] = _lowest_is_best(shifts)
    return PageTable.of(columns)


def _metric_cell(results: Results, norm: str, size: int) -> Cell:
    result, ranking = results.result(norm, size), results.rankings[size]
    recommended = ranking.not_worse if ranking.is_tested else [ranking.best]
    mark = "best" if norm in recommended else ""
    if result.num_failed and not result.n:
        mark = "failed"
    return Cell(format(result, results.metric.result_format), result.mean, mark)


def _significance(results: Results) -> str:
    metric = results.metric
    best, other = ("highest", "lower") if metric.higher_is_better else ("lowest", "higher")
    legend = f"Test {metric.name}: mean over seeds with its 95 % interval. Bold: {best} mean of the column"
    if not any(ranking.is_tested for ranking in results.rankings.values()):
        return f"{legend}. At least {MIN_SEEDS} seeds are needed to compare norms."
    return f"{legend}, and those that are not {other} by more than chance and a margin (p ≥ {LEVEL}, Holm's correction)."


def _cost(results: Results, configs: Sequence[Config], step_times: StepTimes) -> PageTable:
    """Return the table of milliseconds per step and megabytes saved for backward; columns without values are left out."""
    seconds = {(config.norm, config.batch_size): step_times.get(config) for config in configs}
    columns = {"norm": [Cell.of(norm) for norm in results.norms]}
    for size in results.batch_sizes:
        times = [seconds.get((norm, size)) for norm in results.norms]
        columns[f"ms per step, batch {size}"] = _lowest_is_best([None if time is None else 1e3 * time for time in times])
    for size in results.batch_sizes:
        saved = [results.mean(norm, size, lambda record: record.saved_bytes) for norm in results.norms]
        columns[f"MB saved, batch {size}"] = _lowest_is_best([None if value is None else value / 1e6 for value in saved])
    return PageTable.of({title: cells for title, cells in columns.items() if any(cell.value is not None for cell in cells)})


def _runs(results: Results) -> PageTable:
    """Return the table of all runs, with a column of the training metric if a run has it."""
    records, metric = results.records, results.metric
    trained = [record.metrics.get(f"train_{record.metric.name}") for record in records]
    columns: dict[str, Sequence[float | str | None]] = {
        "run": [record.id for record in records],
        "norm": [record.norm for record in records],
        "batch size": [record.batch_size for record in records],
        "seed": [record.seed for record in records],
        "status": [record.status for record in records],
        f"test {metric.label}": [record.value for record in records],
        **({f"train {metric.label}": trained} if any(value is not None for value in trained) else {}),
        "seconds": [record.seconds for record in records],
        "note": [record.note for record in records],
    }
    return PageTable.of({title: [Cell.of(value) for value in values] for title, values in columns.items()})


def _provenance(records: Sequence[RunRecord]) -> dict[str, str]:
    """Return the provenance of the runs; if runs differ in an entry, all values, separated by commas."""
    values: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in record.provenance.items():
            values.setdefault(name, {})[text_of(value)] = None
    return {name: ", ".join(texts) for name, texts in values.items()}
