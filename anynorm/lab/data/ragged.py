"""Rows of different lengths in one array, which worker processes share without copying it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of different lengths in one array: row i is values[offsets[i] : offsets[i + 1]]."""

    values: Array
    offsets: npt.NDArray[np.int64]

    @classmethod
    def from_rows(cls, rows: Iterable[Array], empty: Array) -> Ragged:
        """Concatenate rows; `empty` is an empty array with the dtype of the rows."""
        arrays = list(rows)
        offsets = np.cumsum([0, *(len(array) for array in arrays)]).astype(np.int64)
        return cls(np.concatenate([empty, *arrays]), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Array:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def select(self, indices: Iterable[int]) -> Ragged:
        """Return some of the rows."""
        return Ragged.from_rows([self[index] for index in indices], self.values[:0])
