"""What was found out about a model: rows, a finding, and the rows that matter most."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from anynorm.table import Table


@dataclass
class Report(Table):
    """An answer.

    Attributes:
        what: the question; the function of `anynorm.plot` that draws the answer has its name.
        rank: the column that says how much a row matters.
        details: what is too much for rows, such as series.
    """

    what: str
    rank: str
    details: dict[str, Any] = field(default_factory=dict, repr=False)

    def worst(self, k: int = 5) -> Report:
        """Give the k rows that matter most, largest first; those that could not be measured come last."""

        def size(row: dict[str, Any]) -> float:
            value = row.get(self.rank)
            return -math.inf if value is None or math.isnan(value) else value

        return replace(self, rows=sorted(self.rows, key=size, reverse=True)[:k])
