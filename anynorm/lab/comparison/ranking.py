"""Rank the norms of a comparison at one batch size, and write a recommendation.

    records ── rank ──▶ Ranking ── sentence ──▶ "At batch size 2 use gn:8 or sn …; worse: bn (51.0 %)."

The best norm is the one with the best mean of the task's metric: for classification, the lowest test error. Another norm is worse
if its difference from the best one is not 0, by a two-sided test over seeds with Holm's correction, and larger than a margin. All
norms that are not worse are recommended together, in the order of the table: which of them has the best mean is mostly chance.
The differences share their variance, see `anynorm.lab.training.estimates`. A norm with a failed run is not recommended.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from anynorm.lab.training.estimates import Estimate, estimate_paired, moderate
from anynorm.lab.training.record import ERROR, RunRecord
from anynorm.lab.training.significance import LEVEL, holm
from anynorm.lab.training.task import Metric
from anynorm.table import pluralize

MIN_SEEDS = 3
"""Minimum number of seeds for a significance test."""
MARGIN_POINTS, MARGIN_RATIO = 0.5, 0.02
"""Differences up to this many points of a metric in %, or this fraction of another metric, are not called worse."""
USUAL_NORM = "bn"
"""The norm of most models, to which costs are relative."""


@dataclass(frozen=True)
class Ranking:
    """A ranking of the norms of a comparison at one batch size.

    Attributes:
        batch_size: number of samples per batch.
        means: mean of the metric by norm, for norms without failed runs.
        worse: norms that are worse than the best norm, by more than the margin and than chance.
        failed: norms with a failed run.
        seeds: number of seeds of the best norm.
        metric: the metric by which the norms are ranked.
        best: the norm with the best mean; None if every norm has a failed run or there are no runs.
    """

    batch_size: int
    means: dict[str, float]
    worse: list[str]
    failed: list[str]
    seeds: int
    metric: Metric = ERROR
    best: str | None = None

    @property
    def not_worse(self) -> list[str]:
        """The best norm, and all norms that are not worse."""
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
        best = self.metric.describe(self.means[self.best])
        if len(self.means) == 1:
            return f"{start} use {self.best} ({best}).{failed}"
        if not self.is_tested:
            extreme = "highest" if self.metric.higher_is_better else "lowest"
            needed = f"at least {MIN_SEEDS} seeds are needed to compare norms"
            return f"{start} {self.best} has the {extreme} mean ({best}); {needed}.{failed}"
        worse = "; worse: " + ", ".join(f"{norm} ({self.metric.format(self.means[norm])})" for norm in self.worse)
        if len(self.not_worse) == 1:
            return f"{start} use {self.best} ({best}){worse}.{failed}"
        seeds = f"{pluralize(self.seeds, 'seed')} do not separate them"
        return f"{start} use {_join(self.not_worse, 'or')} ({self._range()}; {seeds}){worse if self.worse else ''}.{failed}"

    def _range(self) -> str:
        """Return the smallest and the largest mean of the norms that are not worse."""
        means = [self.means[norm] for norm in self.not_worse]
        highest = self.metric.format(max(means))
        return self.metric.describe(max(means)).replace(highest, f"{min(means):{self.metric.format_spec}} to {highest}")


def rank(records: Iterable[RunRecord], batch_size: int) -> Ranking:
    """Rank the norms of a comparison at one batch size.

    >>> errors = {"bn": (50.0, 52.0, 51.0), "sn": (2.0, 2.5, 2.2)}
    >>> records = [
    ...     RunRecord("", {"norm": norm, "batch_size": 2, "seed": seed}, "done", metrics={"test_error": error})
    ...     for norm, by_seed in errors.items()
    ...     for seed, error in enumerate(by_seed)
    ... ]
    >>> rank(records, 2).sentence()
    'At batch size 2 use sn (2.2 % error); worse: bn (51.0 %).'
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
    failed = [norm for norm in values if norm not in means]
    if not means:
        return Ranking(batch_size, means, worse=[], failed=failed, seeds=0, metric=metric)
    best = (max if metric.higher_is_better else min)(means, key=means.__getitem__)
    worse = _worse(successful, best, metric)
    return Ranking(batch_size, means, worse, failed, len(successful[best]), metric, best)


def _worse(values: Mapping[str, Mapping[int, float]], best: str, metric: Metric) -> list[str]:
    """Return the norms whose difference from the best one is neither chance nor below the margin.

    Args:
        values: the metric by norm and seed.
        best: the norm with the best mean.
        metric: the metric.
    """
    estimates: dict[str, Estimate] = {}
    for norm in values:
        seeds = sorted(values[norm].keys() & values[best].keys())
        if norm != best and len(seeds) >= MIN_SEEDS:
            estimates[norm] = estimate_paired([values[norm][seed] for seed in seeds], [values[best][seed] for seed in seeds])
    shared = dict(
        zip(estimates, moderate(list(estimates.values()), max_df=sum(map(len, values.values())) - len(values)), strict=True)
    )
    p_values = holm({norm: estimate.p_different() for norm, estimate in shared.items()})
    mean = abs(statistics.fmean(values[best].values()))
    margin = MARGIN_POINTS if metric.unit == "%" else MARGIN_RATIO * mean
    return [norm for norm, estimate in shared.items() if p_values[norm] < LEVEL and abs(estimate.difference) > margin]


def _join(words: Sequence[str], last: str = "and") -> str:
    """Join words as in a sentence.

    >>> _join(["bn", "gn:8", "sn"])
    'bn, gn:8 and sn'
    """
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
