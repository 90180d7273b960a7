"""Convert the records of runs to rows, rank the norms, and write a recommendation.

    record ── row_from_record ──▶ row ── rank ──▶ Ranking ── sentence ──▶ "At batch size 2 use sn: …"

At each batch size, the best norm is the one with the best mean of the task's metric: for classification, the lowest test error.
Every other norm is compared with the best by a paired t-test over seeds, with Holm's correction (see
`anynorm.lab.training.statistics`). A norm with a failed run is not recommended.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anynorm.lab.report.robustness import ROBUST_FORMAT, attacks_of, mode_warning, read_robust_errors, robust_columns
from anynorm.lab.training.statistics import LEVEL, Result, holm, paired_t_test
from anynorm.lab.training.task import Metric
from anynorm.table import Table

Row = dict[str, Any]
MIN_SEEDS = 3
"""Minimum number of seeds for a significance test."""
ERROR = Metric("error", "%")
"""The metric of runs whose record names no metric: old records of classification."""
USUAL_NORM = "bn"
"""The norm of most models. No other norm is recommended if it is not significantly worse than the best norm."""


def row_from_record(record: dict[str, Any]) -> Row:
    """Return the row of a run for comparisons: its cell (norm, batch size, seed) and its metrics.

    >>> row_from_record({"config": {"norm": "bn", "batch_size": 2, "seed": 0}, "status": "done", "test_error": 2.5})["value"]
    2.5
    """
    metric = metric_of(record)
    shifts = [layer["shift"] for layer in record.get("shift") or [] if layer["shift"] is not None]
    return {
        **{name: record["config"][name] for name in ("norm", "batch_size", "seed")},
        "status": record["status"],
        "note": record.get("note", ""),
        "metric": metric,
        "value": record.get(f"test_{metric.name}") if record["status"] == "done" else None,
        "max_shift": max(shifts, default=None),
        "saved_bytes": record.get("saved_bytes"),
        "robust_errors": read_robust_errors(record),
    }


def metric_of(record: Mapping[str, Any]) -> Metric:
    """Return the metric of a record or a row."""
    metric = record.get("metric")
    return ERROR if metric is None else metric if isinstance(metric, Metric) else Metric(**metric)


def common_metric(rows: Iterable[Row]) -> Metric:
    """Return the metric of the rows of one comparison; rows of failed runs may have none."""
    return next((metric_of(row) for row in rows if "metric" in row), ERROR)


def select(rows: Iterable[Row], norm: str, batch_size: int) -> list[Row]:
    """Return the rows of one norm at one batch size, sorted by seed."""
    return sorted((row for row in rows if (row["norm"], row["batch_size"]) == (norm, batch_size)), key=lambda row: row["seed"])


def result_of(rows: Iterable[Row]) -> Result:
    """Return the metric of rows over seeds."""
    return Result.of(row["value"] for row in rows)


def mean_of(rows: Iterable[Row], name: str) -> float | None:
    """Return the mean of a column over the rows in which it is not None; None if there are no such rows."""
    values = [row[name] for row in rows if row[name] is not None]
    return statistics.fmean(values) if values else None


@dataclass(frozen=True)
class Ranking:
    """A ranking of the norms of a comparison at one batch size.

    Attributes:
        batch_size: number of samples per batch.
        means: mean of the metric by norm, for norms without failed runs; the best first.
        worse: norms that are significantly worse than the best norm.
        failed: norms with a failed run.
        seeds: number of seeds of the best norm.
        metric: the metric by which the norms are ranked.
    """

    batch_size: int
    means: dict[str, float]
    worse: list[str]
    failed: list[str]
    seeds: int
    metric: Metric = ERROR

    @property
    def best(self) -> str | None:
        """The norm with the best mean; None if every norm has a failed run or there are no runs."""
        return next(iter(self.means), None)

    @property
    def alike(self) -> list[str]:
        """The best norm, and all norms that are not significantly worse."""
        return [norm for norm in self.means if norm not in self.worse]

    @property
    def is_tested(self) -> bool:
        """Whether there are enough seeds for a significance test."""
        return self.seeds >= MIN_SEEDS

    def sentence(self) -> str:
        """Return the recommendation for this batch size."""
        start = f"At batch size {self.batch_size}"
        if self.best is None:
            return f"{start} every norm failed." if self.failed else f"{start} no run has finished."
        failed = f" {_join(self.failed)} failed." if self.failed else ""
        use = f"{start} use {self.best}: {self.metric.describe(self.means[self.best])}"
        if len(self.means) == 1:
            return f"{use}.{failed}"
        if not self.is_tested:
            return f"{use}; use at least {MIN_SEEDS} seeds for a significance test.{failed}"
        if not self.worse or USUAL_NORM in self.alike[1:]:
            exceptions = f" except {self._join_formatted(self.worse)}" if self.worse else ""
            best = f"{self.best} has the {'highest' if self.metric.higher_is_better else 'lowest'} {self.metric.name}"
            return f"{start} the norms{exceptions} do not differ significantly; {best}, {self._format(self.best)}.{failed}"
        similar = f"; {_join(self.alike[1:])} {'are' if len(self.alike) > 2 else 'is'} not significantly worse"
        return f"{use}, significantly better than {self._join_formatted(self.worse)}{similar * (len(self.alike) > 1)}.{failed}"

    def _format(self, norm: str) -> str:
        return self.metric.format(self.means[norm])

    def _join_formatted(self, norms: Iterable[str]) -> str:
        return _join([f"{norm} ({self._format(norm)})" for norm in norms])


def rank(rows: Iterable[Row], batch_size: int) -> Ranking:
    """Rank the norms of a comparison at one batch size.

    >>> runs = [("bn", 50.0), ("bn", 52.0), ("bn", 51.0), ("sn", 2.0), ("sn", 2.5), ("sn", 2.2)]
    >>> cells = [{"norm": norm, "batch_size": 2, "seed": k % 3, "value": error} for k, (norm, error) in enumerate(runs)]
    >>> rank(cells, 2).sentence()
    'At batch size 2 use sn: 2.2 % error, significantly better than bn (51.0 %).'
    """
    rows = [row for row in rows if row["batch_size"] == batch_size]
    metric = common_metric(rows)
    values: dict[str, dict[int, float | None]] = {}
    for row in rows:
        values.setdefault(row["norm"], {})[row["seed"]] = row["value"]
    successful = {
        norm: {seed: value for seed, value in by_seed.items() if value is not None}
        for norm, by_seed in values.items()
        if None not in by_seed.values()
    }
    means = {norm: statistics.fmean(by_seed.values()) for norm, by_seed in successful.items()}
    means = dict(sorted(means.items(), key=lambda item: item[1], reverse=metric.higher_is_better))
    failed = [norm for norm in values if norm not in means]
    if not means:
        return Ranking(batch_size, means, worse=[], failed=failed, seeds=0, metric=metric)
    best, *others = means
    p_values = holm({norm: _p_value(successful[norm], successful[best], metric) for norm in others})
    worse = [norm for norm in others if p_values[norm] < LEVEL]
    return Ranking(batch_size, means, worse, failed, len(successful[best]), metric)


def _p_value(worse: dict[int, float], better: dict[int, float], metric: Metric) -> float:
    """Return the p-value of the paired test over the seeds that both norms have; 1.0 if they are fewer than `MIN_SEEDS`."""
    seeds = sorted(worse.keys() & better.keys())
    if len(seeds) < MIN_SEEDS:
        return 1.0
    larger, smaller = (better, worse) if metric.higher_is_better else (worse, better)
    return paired_t_test([larger[seed] for seed in seeds], [smaller[seed] for seed in seeds])


def recommend(rows: Iterable[Row], batch_sizes: Iterable[int]) -> str:
    """Return one sentence per batch size with the norm to use, and a warning where robust errors depend on the norms' mode."""
    rows, sizes = list(rows), list(batch_sizes)
    warning = mode_warning(rows, dict.fromkeys(row["norm"] for row in rows), sizes)
    return " ".join([*(rank(rows, size).sentence() for size in sizes), *([warning] if warning else [])])


def summary(
    rows: Sequence[Row], norms: Sequence[str], batch_sizes: Sequence[int], step_seconds: Mapping[tuple[str, int], float]
) -> Table:
    """Return the table of a comparison: one line per norm, with the recommendation as the finding.

    Args:
        rows: the rows of the runs.
        norms: the norms, in the order of the table.
        batch_sizes: the batch sizes, in the order of the table.
        step_seconds: seconds per training step by norm and batch size.
    """
    metric = common_metric(rows)
    reference = USUAL_NORM if USUAL_NORM in norms else norms[0]
    lines = []
    formats: dict[str, str] = {}
    for norm in norms:
        line: dict[str, Any] = {"norm": norm}
        for size in batch_sizes:
            cell, reference_cell = select(rows, norm, size), select(rows, reference, size)
            line[f"{metric.label}, batch {size}"] = result_of(cell)
            formats[f"{metric.label}, batch {size}"] = metric.result_format
            robust = robust_columns(cell, attacks_of(rows), size)
            formats |= dict.fromkeys(robust, ROBUST_FORMAT)
            line |= robust
            line[f"shift, batch {size}"] = mean_of(cell, "max_shift")
            line[f"step time, batch {size}"] = _ratio(step_seconds.get((norm, size)), step_seconds.get((reference, size)))
            line[f"memory, batch {size}"] = _ratio(mean_of(cell, "saved_bytes"), mean_of(reference_cell, "saved_bytes"))
        lines.append(line)
    shift = "Shift: largest estimation shift of a layer. " * any(row["max_shift"] is not None for row in rows)
    memory = " and memory saved for backward" * any(row["saved_bytes"] is not None for row in rows)
    attacks = "Robust error: on adversarial images, by the mode of the norms during the attack. " * bool(attacks_of(rows))
    times = f"Step time{memory}: relative to {reference}." * bool(step_seconds or memory)  # neither if every run has failed
    return Table(lines, f"{attacks}{shift}{times}\n{recommend(rows, batch_sizes)}".lstrip(), formats=formats)


def _ratio(value: float | None, reference: float | None) -> float | None:
    return value / reference if value and reference else None


def _join(words: Sequence[str]) -> str:
    """Join words as in a sentence.

    >>> _join(["bn", "gn:8", "sn"])
    'bn, gn:8 and sn'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
