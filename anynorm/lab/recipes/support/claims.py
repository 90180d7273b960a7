"""Claims of a paper, tested with the measurements of a record.

A claim states that one quantity is larger than another. Both are measured with the same seeds and compared by Student's paired
one-sided t-test at level 5 %:

    holds              the first quantity is significantly larger
    does not hold      the first quantity is significantly smaller
    not significant    neither of the two; a decision would need more seeds or a larger effect
    failed             a run of one of the two quantities diverged or could not be trained
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anynorm.errors import DataError
from anynorm.lab.recipes.support.rows import Values, accuracy_of
from anynorm.lab.training.result import Result
from anynorm.lab.training.significance import LEVEL, paired_t_test
from anynorm.lab.training.sweep import Row

HOLDS, DOES_NOT_HOLD, NOT_SIGNIFICANT, FAILED = "holds", "does not hold", "not significant", "failed"
VERDICTS = (HOLDS, DOES_NOT_HOLD, NOT_SIGNIFICANT, FAILED)
NOT_IN_PAPER = "not in the paper"
"""`Claim.paper` of claims that are not the paper's."""


@dataclass(frozen=True)
class Claim:
    """The claim that one quantity is larger than another.

    Args:
        statement: the claim as a sentence.
        paper: the numbers in the paper as "LARGER and SMALLER", or the place in the paper that makes the claim.
        larger: a function of the rows of a record that returns the first quantity, one value per seed.
        smaller: a function of the rows of a record that returns the second quantity, in the same order of seeds.
    """

    statement: str
    paper: str
    larger: Values
    smaller: Values

    def judge(self, rows: list[Row]) -> dict[str, Any]:
        """Test the claim by a paired test over seeds.

        Returns:
            A row of the table of claims: claim, paper, the results over seeds of the larger and the smaller quantity, number of
            seeds n, p-value and verdict.

        Raises:
            DataError: if the two quantities do not have the same number of values, or have no values.
        """
        larger, smaller = self.larger(rows), self.smaller(rows)
        if len(larger) != len(smaller) or not larger:
            counts = f"{len(larger)} and {len(smaller)}"
            raise DataError(f"the claim {self.statement!r} must have the same number of values on both sides; got {counts}.")
        a, b = [value for value in larger if value is not None], [value for value in smaller if value is not None]
        complete = len(a) == len(b) == len(larger)
        return {
            "claim": self.statement,
            "paper": self.paper,
            "larger": Result.of(larger),
            "smaller": Result.of(smaller),
            "n": len(larger),
            "p": paired_t_test(a, b) if complete else 1.0,
            "verdict": verdict(a, b) if complete else FAILED,
        }


def verdict(larger: Sequence[float], smaller: Sequence[float]) -> str:
    """Return "holds", "does not hold" or "not significant" for paired values."""
    if paired_t_test(larger, smaller) < LEVEL:
        return HOLDS
    return DOES_NOT_HOLD if paired_t_test(smaller, larger) < LEVEL else NOT_SIGNIFICANT


def more_accurate(norm: str, other: str, paper: str, **cell: Any) -> Claim:
    """Return the claim that a norm is more accurate than another norm with the same `cell`, such as `batch_size=2`."""
    conditions = ", ".join(f"{key.replace('batch_size', 'batch')} {value}" for key, value in cell.items())
    statement = f"`{norm}` is more accurate than `{other}`" + (f" ({conditions})" if conditions else "")
    return Claim(statement, paper, accuracy_of(norm=norm, **cell), accuracy_of(norm=other, **cell))
