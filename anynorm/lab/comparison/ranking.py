"""Rank the norms of a comparison at one batch size, and write a recommendation.

    records ── rank ──▶ Ranking ── sentence ──▶ "At batch size 2 use sn: …"

The best norm is the one with the best mean of the task's metric: for classification, the lowest test error. Every other norm is
compared with the best by a paired t-test over seeds, with Holm's correction (see `anynorm.lab.training.significance`). A norm
with a failed run is not recommended.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from anynorm.lab.training.record import ERROR, RunRecord
from anynorm.lab.training.significance import LEVEL, holm, paired_t_test
from anynorm.lab.training.task import Metric

MIN_SEEDS = 3
"""Minimum number of seeds for a significance test."""
USUAL_NORM = "bn"
"""The norm of most models. No other norm is recommended if it is not significantly worse than the best norm."""


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
    def not_worse(self) -> list[str]:
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
        if not self.worse or USUAL_NORM in self.not_worse[1:]:
            exceptions = f" except {self._join_formatted(self.worse)}" if self.worse else ""
            best = f"{self.best} has the {'highest' if self.metric.higher_is_better else 'lowest'} {self.metric.name}"
            return f"{start} the norms{exceptions} do not differ significantly; {best}, {self._format(self.best)}.{failed}"
        similar = f"; {_join(self.not_worse[1:])} {'are' if len(self.not_worse) > 2 else 'is'} not significantly worse"
        return (
            f"{use}, significantly better than {self._join_formatted(self.worse)}{similar * (len(self.not_worse) > 1)}.{failed}"
        )

    def _format(self, norm: str) -> str:
        return self.metric.format(self.means[norm])

    def _join_formatted(self, norms: Iterable[str]) -> str:
        return _join([f"{norm} ({self._format(norm)})" for norm in norms])


def rank(records: Iterable[RunRecord], batch_size: int) -> Ranking:
    """Rank the norms of a comparison at one batch size.

    >>> errors = {"bn": (50.0, 52.0, 51.0), "sn": (2.0, 2.5, 2.2)}
    >>> records = [
    ...     RunRecord("", {"norm": norm, "batch_size": 2, "seed": seed}, "done", metrics={"test_error": error})
    ...     for norm, by_seed in errors.items()
    ...     for seed, error in enumerate(by_seed)
    ... ]
    >>> rank(records, 2).sentence()
    'At batch size 2 use sn: 2.2 % error, significantly better than bn (51.0 %).'
    """
    metric, values = ERROR, dict[str, dict[int, float | None]]()
    for record in records:
        if record.batch_size == batch_size:
            metric = record.metric
            values.setdefault(record.norm, {})[record.seed] = record.value
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


def _p_value(worse: Mapping[int, float], better: Mapping[int, float], metric: Metric) -> float:
    """Return the p-value of the paired test over the seeds that both norms have; 1.0 if they are fewer than `MIN_SEEDS`."""
    seeds = sorted(worse.keys() & better.keys())
    if len(seeds) < MIN_SEEDS:
        return 1.0
    larger, smaller = (better, worse) if metric.higher_is_better else (worse, better)
    return paired_t_test([larger[seed] for seed in seeds], [smaller[seed] for seed in seeds])


def _join(words: Sequence[str]) -> str:
    """Join words as in a sentence.

    >>> _join(["bn", "gn:8", "sn"])
    'bn, gn:8 and sn'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
