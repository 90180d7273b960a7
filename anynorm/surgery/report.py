"""What an operation did to a model, row by row, and the way back."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from anynorm.errors import SurgeryError


@dataclass
class Report:
    """What was done.

    Attributes:
        model: the model; the same object, unless the root itself was replaced.
        rows: one dictionary a module, its path first.
        finding: the last line: what it comes to.
    """

    model: nn.Module
    rows: list[dict[str, Any]]
    finding: str
    back: Callable[[], None] = field(repr=False, default=lambda: None)
    original: nn.Module | None = field(repr=False, default=None)

    def undo(self) -> nn.Module:
        """Put everything back as it was, and give the model."""
        self.back()
        self.model = self.original or self.model
        return self.model

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, path: str) -> dict[str, Any]:
        for row in self.rows:
            if row["path"] == path:
                return row
        near = difflib.get_close_matches(path, [row["path"] for row in self.rows], n=3, cutoff=0.3)
        raise SurgeryError(f"The report has no row {path!r}." + (f" Near: {' '.join(near)}." if near else ""))

    def json(self) -> str:
        """Give rows and finding for a program."""
        return json.dumps({"rows": self.rows, "finding": self.finding}, indent=2)

    def table(self) -> str:
        """Give rows and finding for a person."""
        columns = list(dict.fromkeys(column for row in self.rows for column in row))
        cells = [[_shown(row.get(column)) for column in columns] for row in self.rows]
        widths = [
            max(len(column), *(len(line[k]) for line in cells)) if cells else len(column) for k, column in enumerate(columns)
        ]
        lines = [columns, *cells]
        text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([*(text if cells else []), self.finding])

    def __str__(self) -> str:
        return self.table()


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
