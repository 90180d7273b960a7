"""The result of a diagnostic: rows of measurements and a finding."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from anynorm.table import Table


@dataclass
class DiagnosticReport(Table):
    """Table of measurements with a one-line finding.

    Attributes:
        kind: name of the diagnostic; the function of `anynorm.draw` that plots the report has the same name.
        sort_column: column by which `worst` orders the rows.
        details: values that do not fit into rows, such as time series.

    >>> report = DiagnosticReport([{"path": "a", "shift": 0.1}, {"path": "b", "shift": 0.7}], "2 norms.", "demo", "shift")
    >>> [row["path"] for row in report.worst(1)]
    ['b']
    """

    kind: str
    sort_column: str
    details: dict[str, Any] = field(default_factory=dict, repr=False)

    def worst(self, k: int = 5) -> DiagnosticReport:
        """Return a report with the k rows that have the largest values in `sort_column`; rows without a value are last."""

        def sort_key(row: dict[str, Any]) -> float:
            value = row.get(self.sort_column)
            return -math.inf if value is None or math.isnan(value) else value

        return replace(self, rows=sorted(self.rows, key=sort_key, reverse=True)[:k])
