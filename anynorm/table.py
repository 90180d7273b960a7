"""Rows and a finding, for a person and for a program."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anynorm.errors import AnynormError


@dataclass
class Table:
    """What was found.

    Attributes:
        rows: one dictionary a line; the first entry names it, as the path of a layer.
        finding: the last line: what it comes to.
    """

    rows: list[dict[str, Any]]
    finding: str

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> dict[str, Any]:
        for row in self.rows:
            if next(iter(row.values())) == name:
                return row
        names = [str(next(iter(row.values()))) for row in self.rows]
        near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.3)
        raise AnynormError(f"The report has no row {name!r}." + (f" Near: {' '.join(near)}." if near else ""))

    def json(self) -> str:
        """Give rows and finding for a program; a number that is none is null."""
        return json.dumps(plain({"rows": self.rows, "finding": self.finding}), indent=2, allow_nan=False)

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
        return ", ".join(map(_shown, value))
    return str(value)


def plain(value: Any) -> Any:
    """Give plain values for a program: a number that is none becomes None."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
