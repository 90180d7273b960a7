"""The results of a comparison: its runs by norm and batch size, the ranking of the norms, and the recommendation."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from anynorm.lab.comparison.ranking import USUAL_NORM, Ranking, rank
from anynorm.lab.comparison.robustness import attacks_of, mode_warning
from anynorm.lab.training.record import ERROR, RunRecord
from anynorm.lab.training.result import Result
from anynorm.lab.training.task import Metric


@dataclass(frozen=True)
class Results:
    """The results of a comparison.

    Args:
        records: the records of the finished runs.
        norms: the norms, in the order of tables.
        batch_sizes: the batch sizes, in the order of tables.
    """

    records: Sequence[RunRecord]
    norms: Sequence[str]
    batch_sizes: Sequence[int]

    @property
    def metric(self) -> Metric:
        """The metric of the runs."""
        return self.records[0].metric if self.records else ERROR

    @property
    def reference_norm(self) -> str:
        """The norm to which costs are relative: bn, or the first norm."""
        return USUAL_NORM if USUAL_NORM in self.norms else self.norms[0]

    @cached_property
    def attacks(self) -> list[str]:
        """The attacks on the trained networks."""
        return attacks_of(self.records)

    @cached_property
    def rankings(self) -> dict[int, Ranking]:
        """The ranking of the norms by batch size, with the norms in the order of tables."""
        return {
            size: rank([record for norm in self.norms for record in self.cell(norm, size)], size) for size in self.batch_sizes
        }

    @cached_property
    def recommendation(self) -> str:
        """One sentence per batch size with the norm to use, and a warning where robust errors depend on the norms' mode."""
        warning = mode_warning(self.records, dict.fromkeys(record.norm for record in self.records), self.batch_sizes)
        return " ".join([*(ranking.sentence() for ranking in self.rankings.values()), *([warning] if warning else [])])

    def cell(self, norm: str, batch_size: int) -> list[RunRecord]:
        """Return the runs of one norm at one batch size, sorted by seed."""
        records = (record for record in self.records if (record.norm, record.batch_size) == (norm, batch_size))
        return sorted(records, key=lambda record: record.seed)

    def result(self, norm: str, batch_size: int) -> Result:
        """Return the metric of one norm at one batch size."""
        return Result.of(record.value for record in self.cell(norm, batch_size))

    def mean(self, norm: str, batch_size: int, quantity: Callable[[RunRecord], float | None]) -> float | None:
        """Return the mean of a quantity of one norm at one batch size; None if no run has it."""
        values = [value for record in self.cell(norm, batch_size) if (value := quantity(record)) is not None]
        return statistics.fmean(values) if values else None
