"""Select values from the rows of a record, for tables and plots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from anynorm.lab.training.result import Result
from anynorm.lab.training.sweep import Row
from anynorm.table import Table


def select(rows: list[Row], column: str, **cell: Any) -> list[Any]:
    """Return a column of the rows that match a cell, sorted by seed.

    >>> rows = [{"norm": "bn", "seed": 1, "accuracy": 91.0}, {"norm": "bn", "seed": 0, "accuracy": 90.0}]
    >>> select(rows, "accuracy", norm="bn")
    [90.0, 91.0]
    """
    matching = [row for row in rows if all(row.get(key) == value for key, value in cell.items())]
    return [row[column] for row in sorted(matching, key=lambda row: row["seed"])]


def successful(rows: list[Row], column: str = "accuracy", **cell: Any) -> list[float]:
    """Return a column of the rows that match a cell, without None (failed runs)."""
    return [value for value in select(rows, column, **cell) if value is not None]


def result_over_seeds(rows: list[Row], column: str, **cell: Any) -> Result:
    """Return the mean and standard deviation over seeds of a column of a cell."""
    return Result.of(select(rows, column, **cell))


def accuracy_rows(
    rows: list[Row], name: str, values: Iterable[Any], column: str, titles: Mapping[str, Any], *, label: str = "", **cell: Any
) -> list[Row]:
    """Return the rows of a table of accuracies: one row per value of `name`, one column per value of `column`.

    Args:
        rows: the rows of a record.
        name: the key of a cell that differs between rows of the table.
        values: the values of `name`.
        column: the key of a cell that differs between columns of the table.
        titles: the values of `column` by the title of the table's column.
        label: the title of the first column, if it is not `name`.
        cell: what all cells of the table have in common.
    """
    return [
        {label or name: value}
        | {title: result_over_seeds(rows, "accuracy", **{name: value, column: each}, **cell) for title, each in titles.items()}
        for value in values
    ]


def metric_rows(
    rows: list[Row], name: str, values: Iterable[Any], columns: Mapping[str, str], *, label: str = "", **cell: Any
) -> list[Row]:
    """Return the rows of a table of metrics: one row per value of `name`, one column per metric.

    Args:
        rows: the rows of a record.
        name: the key of a cell that differs between rows of the table.
        values: the values of `name`.
        columns: the columns of the record by title.
        label: the title of the first column, if it is not `name`.
        cell: what all cells of the table have in common.
    """
    return [
        {label or name: value}
        | {title: result_over_seeds(rows, column, **{name: value}, **cell) for title, column in columns.items()}
        for value in values
    ]


def result_table(rows: list[Row], finding: str, format_spec: str = ".1f") -> Table:
    """Return a table whose results are all formatted in the same way.

    Args:
        rows: rows of the table; see `Table`.
        finding: the last line of the table.
        format_spec: the format of results, see `Result`.
    """
    columns = {column for row in rows for column, value in row.items() if isinstance(value, Result)}
    return Table(rows, finding, formats=dict.fromkeys(columns, format_spec))


def save_figure(figure: Any, path: Path, dpi: int = 150) -> list[Path]:
    """Write a figure as PNG and return its path in a list.

    Args:
        figure: a matplotlib figure.
        path: the path without the extension.
        dpi: resolution in dots per inch.
    """
    picture = path.with_name(f"{path.name}.png")
    figure.savefig(picture, dpi=dpi)
    return [picture]
