"""Claims of a paper as data, and whether measurements bear them out.

A claim says that one number is larger than another. Both are measured with the same seeds, and their differences are judged by
Student's paired t-test, one-sided at 5 %:

    holds              larger, and significantly so
    does not hold      smaller, and significantly so
    not significant    neither: more seeds, or a larger effect, would be needed
    failed             a run that one of the numbers is of diverged, or could not be trained at all
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from anynorm.errors import DataError
from anynorm.recipes.support.record import Row

LEVEL = 0.05


@dataclass(frozen=True)
class Claim:
    """That `larger` is larger than `smaller`.

    Args:
        says: the sentence.
        paper: the paper's own numbers, as it prints them.
        larger: gives one number a seed from a record's rows, as does `smaller`, in the same order.
    """

    says: str
    paper: str
    larger: Callable[[list[Row]], Sequence[float | None]]
    smaller: Callable[[list[Row]], Sequence[float | None]]

    def judge(self, rows: list[Row]) -> dict[str, Any]:
        """Compare seed by seed."""
        larger, smaller = self.larger(rows), self.smaller(rows)
        if len(larger) != len(smaller) or not larger:
            raise DataError(f"The claim {self.says!r} compares {len(larger)} numbers with {len(smaller)}.")
        differences = [a - b for a, b in zip(larger, smaller, strict=True) if a is not None and b is not None]
        whole = len(differences) == len(larger)
        return {
            "claim": self.says,
            "paper": self.paper,
            "larger": spread(larger),
            "smaller": spread(smaller),
            "n": len(larger),
            "p": probability(differences) if whole else 1.0,
            "verdict": verdict(differences) if whole else "failed",
        }


def pick(rows: list[Row], column: str, **cell: Any) -> list[Any]:
    """Give a column of the rows that fit a cell, in the order of their seeds."""
    fitting = [row for row in rows if all(row.get(key) == value for key, value in cell.items())]
    return [row[column] for row in sorted(fitting, key=lambda row: row["seed"])]


def spread(numbers: Sequence[float | None], mean: str = ".4g", sd: str = ".2g") -> str:
    """Write mean ± sd, and how many are missing.

    Args:
        mean, sd: how either is written.

    >>> spread([30.0, 32.0, None])
    '31 ± 1.4, 1 of 3 failed'
    """
    values = [value for value in numbers if value is not None]
    if not values:
        return "failed" if numbers else ""
    middle, lost = statistics.fmean(values), len(numbers) - len(values)
    around = f" ± {statistics.stdev(values):{sd}}" if len(values) > 1 and math.isfinite(middle) else ""
    return f"{middle:{mean}}{around}" + (f", {lost} of {len(numbers)} failed" if lost else "")


def verdict(differences: list[float]) -> str:
    """Say whether differences are above 0."""
    if probability(differences) < LEVEL:
        return "holds"
    return "does not hold" if probability([-value for value in differences]) < LEVEL else "not significant"


def probability(differences: list[float]) -> float:
    """Give the probability of a mean at least so large without a difference; 1 for a single one, or one that is no number."""
    if len(differences) < 2 or not all(map(math.isfinite, differences)):
        return 1.0
    mean, sd = statistics.fmean(differences), statistics.stdev(differences)
    if sd == 0:
        return 0.0 if mean > 0 else 1.0
    from scipy.stats import t

    return float(t.sf(mean / (sd / math.sqrt(len(differences))), len(differences) - 1))
