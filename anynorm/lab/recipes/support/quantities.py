"""Quantities of a record: one value per seed, computed from its rows.

    Measured      a column of one cell                          accuracy of bn at batch size 2
    Linear        a weighted sum of quantities, seed by seed    accuracy of bn at 32 minus that at 2; the mean over layers
    Computed      any other function of quantities              the ratio of two losses
    Constant      a number without seeds                        chance

Each quantity knows the cells it reads, so that a verdict can check whether their networks have learned, and whether the two sides
of a pair come from one version of the code. An accuracy also knows which test images were classified correctly, if the rows have
`hits`: from these follows how much a difference depends on the choice of the test images.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anynorm.errors import DataError
from anynorm.lab.training.hits import unpack_hits
from anynorm.lab.training.sweep import Cell, Row

ACCURACY, HITS = "accuracy", "hits"
"""The column of the test accuracy in %, and the column that says which test images were classified correctly."""


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

    def hits(self, rows: Sequence[Row], seed: int) -> NDArray[np.float64] | None:
        """Return the value as a mean over test images, in % per image; None if the rows do not have it."""
        return None

    def binomial_variance(self, rows: Sequence[Row], num_test: int) -> float | None:
        """Return the variance due to the choice of `num_test` test images, as if networks erred independently of each other.

        It is an upper limit, for rows without `hits`; None for a quantity that is not an accuracy.
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
    """

    column: str | Callable[[Row], float | None]
    cell: Mapping[str, Any] = field(default_factory=dict)

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

    def hits(self, rows: Sequence[Row], seed: int) -> NDArray[np.float64] | None:
        """Return 100 for each test image that was classified correctly, 0 for each other; None for other columns."""
        packed = self._row(rows, seed).get(HITS) if self.column == ACCURACY else None
        return None if packed is None else 100.0 * unpack_hits(packed)

    def binomial_variance(self, rows: Sequence[Row], num_test: int) -> float | None:
        """Return p (1 − p) / `num_test` for an accuracy p, the mean over seeds, in squared points; None for other columns."""
        if self.column != ACCURACY:
            return None
        values = [value for seed in self.seeds(rows) or () if (value := self.at(rows, seed)) is not None]
        p = sum(values) / len(values) if values else 50.0
        return p * (100.0 - p) / num_test

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

    def hits(self, rows: Sequence[Row], seed: int) -> NDArray[np.float64] | None:
        """Return the sum for each test image; None if a part does not have it."""
        arrays = [part.hits(rows, seed) for part in self.parts]
        known = [array for array in arrays if array is not None]
        if len(known) < len(arrays) or len({len(array) for array in known}) > 1:
            return None
        return np.asarray(self.weights) @ np.stack(known)

    def binomial_variance(self, rows: Sequence[Row], num_test: int) -> float | None:
        """Return the sum of the variances of the parts, with squared weights; None if a part is not an accuracy."""
        variances = [part.binomial_variance(rows, num_test) for part in self.parts]
        terms = [weight**2 * value for weight, value in zip(self.weights, variances, strict=True) if value is not None]
        return sum(terms) if len(terms) == len(variances) else None


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

    def binomial_variance(self, rows: Sequence[Row], num_test: int) -> float:
        """Return 0: the number does not depend on test images."""
        return 0.0


def accuracy_of(**cell: Any) -> Measured:
    """Return the test accuracy of a cell."""
    return Measured(ACCURACY, cell)


def mean_of(parts: Sequence[Quantity]) -> Linear:
    """Return the mean of quantities, seed by seed, such as the mean over folds or layers."""
    return Linear(parts, [1 / len(parts)] * len(parts))


def accuracy_drop(large: int, small: int, **cell: Any) -> Linear:
    """Return the drop of accuracy, in points, from a large batch size to a small one."""
    return accuracy_of(batch_size=large, **cell) - accuracy_of(batch_size=small, **cell)
