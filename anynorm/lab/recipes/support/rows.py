"""Select values from the rows of a record, for claims, tables and plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anynorm.lab.training.statistics import mean_sd
from anynorm.lab.training.sweep import Row

Values = Callable[[list[Row]], Sequence[float | None]]
"""A function of the rows of a record that returns one value per seed, sorted by seed; None where the run failed."""


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


def accuracy_mean_sd(rows: list[Row], **cell: Any) -> str:
    """Format the accuracy of a cell as "mean ± sd" over seeds, with the number of failed runs."""
    return mean_sd(select(rows, "accuracy", **cell), ".1f", ".1f")


def values_of(column: str, **cell: Any) -> Values:
    """Return a function that selects a column of a cell."""
    return lambda rows: select(rows, column, **cell)


def accuracy_of(**cell: Any) -> Values:
    """Return a function that selects the accuracies of a cell."""
    return values_of("accuracy", **cell)


def accuracy_drop(large: int, small: int, **cell: Any) -> Values:
    """Return a function that computes the drop of accuracy, in points, from a large batch size to a small one."""

    def drop(rows: list[Row]) -> list[float | None]:
        before, after = (select(rows, "accuracy", batch_size=size, **cell) for size in (large, small))
        return [None if a is None or b is None else a - b for a, b in zip(before, after, strict=True)]

    return drop


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
