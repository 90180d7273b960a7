"""Quantities of a record: one value per seed, computed from its rows.

    Measured      a column of one cell                          accuracy of bn at batch size 2
    Linear        a weighted sum of quantities, seed by seed    accuracy of bn at 32 minus that at 2; the mean over layers
    Computed      any other function of quantities              the ratio of two losses
    Constant      a number without seeds                        chance

Each quantity knows the cells it reads, so that a verdict can check whether their networks have learned, and whether the two sides
of a pair come from one version of the code.

A metric is a mean over test items (images, pairs of images, videos), or nearly so. If a row has the value of each item, it is
known how much a difference depends on the choice of the items. Rows have `hits` for the accuracy, and `items` for other columns,
see `anynorm.lab.training.items`. For a function f of metrics v_j with item values x_ij, the values are Σ_j (∂f/∂v_j) x_ij (the
delta method).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anynorm.errors import DataError
from anynorm.lab.training.items import unpack_items
from anynorm.lab.training.sweep import Cell, Row

ACCURACY, HITS, ITEMS = "accuracy", "hits", "items"
"""The column of the test accuracy in %, the column that says which test images were classified correctly, and the column with the
values of test items by metric."""


class Quantity(ABC):
    """One value per seed."""

    @property
    @abstractmethod
    def cells(self) -> tuple[Cell, ...]:
        """The cells, without seeds, from which the quantity is computed."""

    @abstractmethod
    def at(self, rows: Sequence[Row], seed: int) -> float | None:
        """Return the value of a seed; None if a run that it needs failed."""

    def seeds(self, rows: Sequence[Row]) -> set[int] | None:
        """Return the seeds for which all cells have a row; None if the quantity has no cells."""
        sets = [{row["seed"] for row in rows if cell.items() <= row.items()} for cell in self.cells]
        return set.intersection(*sets) if sets else None

    def per_item(self, rows: Sequence[Row], seed: int) -> NDArray[np.float64] | None:
        """Return one number per test item, of which the value is the mean up to a constant; None if the rows do not have it."""
        return None

    def binomial_terms(self, rows: Sequence[Row], num_test: int | None) -> list[tuple[float, float]] | None:
        """Return a weight and a variance for each accuracy in a sum, for rows without the values of items.

        Args:
            rows: the rows of the record.
            num_test: number of test images of the column `accuracy`; None if it is not known.

        Returns:
            The variance is that due to the choice of the test images, p (1 − p) / n for an accuracy p on n images, in squared
            points. None for a quantity that is not a sum of accuracies with known numbers of images.
        """
        return None

    def __sub__(self, other: Quantity) -> Linear:
        return Linear((self, other), (1.0, -1.0))


@dataclass(frozen=True)
class Measured(Quantity):
    """A column of a cell.

    Args:
        column: the name of a column, or a function that computes the value from a row.
        cell: the entries that identify the cell, without the seed.
        num_test: number of test images of which the value is the percentage of correct ones; None if it is another metric. The
            column `accuracy` has the number of the recipe.
    """

    column: str | Callable[[Row], float | None]
    cell: Mapping[str, Any] = field(default_factory=dict)
    num_test: int | None = None

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cell."""
        return (dict(self.cell),)

    def at(self, rows: Sequence[Row], seed: int) -> float | None:
        """Return the value of a seed.

        Raises:
            DataError: if the cell has no row or several rows with this seed, or the row does not have the column.
        """
        row = self._row(rows, seed)
        if not isinstance(self.column, str):
            return self.column(row)
        if self.column not in row:
            raise DataError(f"the row of {self.cell} with seed {seed} has no column {self.column!r}; it has {', '.join(row)}.")
        value: float | None = row[self.column]
        return value

    def per_item(self, rows: Sequence[Row], seed: int) -> NDArray[np.float64] | None:
        """Return the values of the test items of a column; None if the row does not have them."""
        row = self._row(rows, seed)
        packed = row.get(HITS) if self.column == ACCURACY else (row.get(ITEMS) or {}).get(self.column)
        return None if packed is None else unpack_items(packed)

    def binomial_terms(self, rows: Sequence[Row], num_test: int | None) -> list[tuple[float, float]] | None:
        """Return p (1 − p) / n with the mean accuracy p over seeds; None for columns without a number of test images."""
        count = self.num_test or (num_test if self.column == ACCURACY else None)
        values = [value for seed in self.seeds(rows) or () if (value := self.at(rows, seed)) is not None]
        if count is None or not values:
            return None
        p = sum(values) / len(values)
        return [(1.0, p * (100.0 - p) / count)]

    def _row(self, rows: Sequence[Row], seed: int) -> Row:
        cell = {**self.cell, "seed": seed}
        matching = [row for row in rows if cell.items() <= row.items()]
        if len(matching) != 1:
            raise DataError(f"the cell {cell} must have one row; got {len(matching)}. Name all keys of the cell.")
        return matching[0]


@dataclass(frozen=True)
class Linear(Quantity):
    """A weighted sum of quantities, seed by seed.

    Args:
        parts: the quantities.
        weights: one weight per quantity.
    """

    parts: Sequence[Quantity]
    weights: Sequence[float]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of all parts."""
        return tuple(cell for part in self.parts for cell in part.cells)

    def at(self, rows: Sequence[Row], seed: int) -> float | None:
        """Return the sum for a seed; None if a part is None."""
        values = [part.at(rows, seed) for part in self.parts]
        pairs = [(weight, value) for weight, value in zip(self.weights, values, strict=True) if value is not None]
        return sum(weight * value for weight, value in pairs) if len(pairs) == len(values) else None

    def per_item(self, rows: Sequence[Row], seed: int) -> NDArray[np.float64] | None:
        """Return the sum for each test item; None if a part does not have its items, or parts have different numbers of them."""
        return _weighted_items([part.per_item(rows, seed) for part in self.parts], self.weights)

    def binomial_terms(self, rows: Sequence[Row], num_test: int | None) -> list[tuple[float, float]] | None:
        """Return the terms of all parts, with multiplied weights; None if a part is not an accuracy."""
        result: list[tuple[float, float]] = []
        for part, factor in zip(self.parts, self.weights, strict=True):
            terms = part.binomial_terms(rows, num_test)
            if terms is None:
                return None
            result += [(factor * weight, variance) for weight, variance in terms]
        return result


@dataclass(frozen=True)
class Computed(Quantity):
    """A function of quantities, seed by seed.

    Args:
        function: a function of one value per part.
        parts: the quantities.
    """

    function: Callable[..., float]
    parts: Sequence[Quantity]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of all parts."""
        return tuple(cell for part in self.parts for cell in part.cells)

    def at(self, rows: Sequence[Row], seed: int) -> float | None:
        """Return the value of the function for a seed; None if a part is None."""
        values = [part.at(rows, seed) for part in self.parts]
        return None if None in values else self.function(*values)

    def per_item(self, rows: Sequence[Row], seed: int) -> NDArray[np.float64] | None:
        """Return the values of items by the delta method, with central differences; None if a part does not have its items."""
        values = [part.at(rows, seed) for part in self.parts]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        slopes = [_slope(self.function, known, position) for position in range(len(known))]
        return _weighted_items([part.per_item(rows, seed) for part in self.parts], slopes)


@dataclass(frozen=True)
class Constant(Quantity):
    """A number that was not measured, such as chance or a paper's number."""

    value: float

    @property
    def cells(self) -> tuple[Cell, ...]:
        """No cells."""
        return ()

    def at(self, rows: Sequence[Row], seed: int) -> float:
        """Return the number."""
        return self.value

    def per_item(self, rows: Sequence[Row], seed: int) -> NDArray[np.float64]:
        """Return one 0: the number does not depend on test items."""
        return np.zeros(1)

    def binomial_terms(self, rows: Sequence[Row], num_test: int | None) -> list[tuple[float, float]]:
        """Return no terms: the number does not depend on test images."""
        return []


def accuracy_of(**cell: Any) -> Measured:
    """Return the test accuracy of a cell."""
    return Measured(ACCURACY, cell)


def mean_of(parts: Sequence[Quantity]) -> Linear:
    """Return the mean of quantities, seed by seed, such as the mean over folds or layers."""
    return Linear(parts, [1 / len(parts)] * len(parts))


def accuracy_drop(large: int, small: int, **cell: Any) -> Linear:
    """Return the drop of accuracy, in points, from a large batch size to a small one."""
    return accuracy_of(batch_size=large, **cell) - accuracy_of(batch_size=small, **cell)


def _weighted_items(arrays: Sequence[NDArray[np.float64] | None], weights: Sequence[float]) -> NDArray[np.float64] | None:
    """Return the weighted sum of values of items; None if values are unknown or the items are not the same."""
    known = [array for array in arrays if array is not None]
    if len(known) < len(arrays) or len({len(array) for array in known} - {1}) > 1:
        return None
    return np.asarray(sum(weight * array for weight, array in zip(weights, known, strict=True)))


def _slope(function: Callable[..., float], values: Sequence[float], position: int) -> float:
    """Return the partial derivative of a function, by a central difference."""
    step = 1e-4 * max(1e-6, abs(values[position]))
    high, low = ([*values[:position], values[position] + sign * step, *values[position + 1 :]] for sign in (1, -1))
    return (function(*high) - function(*low)) / (2 * step)
