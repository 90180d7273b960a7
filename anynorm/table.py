"""Table of results with a finding, printed as aligned text or as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from anynorm.errors import AnynormError, did_you_mean


@dataclass
class Table:
    """Table of results with a finding.

    Attributes:
        rows: One dictionary from column to value per row. The value of the first column is the name of the row, such as the path
            of a layer. Values are numbers, strings, lists, None, or frozen dataclasses that have `__format__`.
        finding: The conclusion, printed as the last line.
        formats: Format specification by column, for the text; without it, a float has three significant digits, and other values
            their own default. Strings are printed as they are.

    >>> print(Table([{"layer": "bn1", "shift": 0.123456}, {"layer": "bn2", "shift": None}], "bn1 shifts most."))
    layer  shift
    bn1    0.123
    bn2
    bn1 shifts most.
    >>> print(Table([{"norm": "bn", "error %": 2.5}], "One norm.", formats={"error %": ".2f"}))
    norm  error %
    bn    2.50
    One norm.
    """

    rows: list[dict[str, Any]]
    finding: str
    formats: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> dict[str, Any]:
        for row in self.rows:
            if next(iter(row.values())) == name:
                return row
        names = [str(next(iter(row.values()))) for row in self.rows]
        hint = did_you_mean(str(name), names) or f" Rows: {' '.join(names)}."
        raise AnynormError(f"no row is named {name!r}.{hint}")

    def to_dict(self) -> dict[str, Any]:
        """Return the rows and the finding as values of JSON; numbers are not rounded, non-finite numbers are None."""
        return {"rows": json_safe(self.rows), "finding": self.finding}

    def json(self) -> str:
        """Return the rows and the finding as JSON, see `to_dict`."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def format(self, row: dict[str, Any], column: str) -> str:
        """Return a value of a row as text; "" if the row does not have the column."""
        return _format(row.get(column), self.formats.get(column, ""))

    def text(self) -> str:
        """Return the rows and the finding as aligned text, with the values formatted by `formats`."""
        columns = list(dict.fromkeys(column for row in self.rows for column in row))
        lines = [columns, *([self.format(row, column) for column in columns] for row in self.rows)]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([*(text if self.rows else []), self.finding])

    def __str__(self) -> str:
        return self.text()


def pluralize(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun.

    >>> pluralize(1, "norm"), pluralize(2, "norm"), pluralize(0, "process", "processes")
    ('1 norm', '2 norms', '0 processes')
    """
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def _format(value: Any, format_spec: str) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(_format(entry, format_spec) for entry in value)
    if isinstance(value, float):
        return format(value, format_spec or ".3g")
    return str(value) if isinstance(value, str) or not format_spec else format(value, format_spec)


def json_safe(value: Any) -> Any:
    """Return a copy of nested dictionaries, sequences and dataclasses, as dictionaries, with None in place of NaN and infinity.

    >>> json_safe({"loss": [float("nan"), 1.5]})
    {'loss': [None, 1.5]}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: json_safe(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {key: json_safe(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
