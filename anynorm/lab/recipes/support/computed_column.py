"""A value that is computed from one row, with the values of its test items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from anynorm.lab.recipes.support.quantities import Measured
from anynorm.lab.training.sweep import Row


@dataclass(frozen=True)
class ComputedColumn(Measured):
    """A function of a row.

    Args:
        items: a function that returns the value of each test item from a row; None if the row does not have them.
    """

    items: Callable[[Row], NDArray[np.float64] | None] = field(kw_only=True)

    def per_item(self, rows: Sequence[Row], seed: int) -> NDArray[np.float64] | None:
        """Return the value of each test item; None if the row does not have them."""
        return self.items(self._row(rows, seed))
