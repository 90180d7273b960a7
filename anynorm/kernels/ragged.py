"""Ragged batches: samples with different numbers of positions.

    Mask      x (n, c, …)      valid (n, positions)      whether each position is valid
    Points    x (points, c)    batch_index (points,)     the sample of each point

Both are weights 0 or 1 per (sample, position): a value counts in the statistics of its sample, or it is hidden. Moments take
these counts along (core/moments.py). The reference needs four operations, which replace those of a batch without hidden values:

    counts    the number of valid positions of each sample and strip      -> (n, 1, strips)
    keep      the values, with 0 at hidden positions                      x -> x
    sum       the sums over the positions of each sample and strip        x -> (n, units, strips)
    expand    the entries of the sample of each position                  (n or 1, c or 1, strips) -> broadcasts to x
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from anynorm.core.moments import table_dtype


class Mask(NamedTuple):
    """The valid positions of padded samples.

    Args:
        valid: whether each position is valid, bool, (n, positions).
    """

    valid: Tensor

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return self.valid.shape[0]

    def counts(self, strips: int) -> Tensor:
        """Return the number of valid positions of each sample and strip, (n, 1, strips)."""
        n, positions = self.valid.shape
        return self.valid.reshape(n, 1, strips, positions // strips).sum(-1)

    def keep(self, values: Tensor) -> Tensor:
        """Return values (n, c, …) with 0 at hidden positions, which receive no gradient."""
        n, _, *space = values.shape
        return torch.where(self.valid.reshape(n, 1, *space), values, 0.0)

    def sum(self, values: Tensor, units: int, strips: int) -> Tensor:
        """Return the sums of values (n, c, …) over each sample, unit of channels and strip, (n, units, strips)."""
        return as_rows(values, units, strips).sum((2, 4))

    def expand(self, table: Tensor, x: Tensor) -> Tensor:
        """Reshape a table that broadcasts to (n, c, strips) to a tensor that broadcasts to x."""
        return expand_table(table, x)


class Points(NamedTuple):
    """The samples of points, such as the nodes of a batch of graphs; in any order.

    Args:
        batch_index: the sample of each point, int64, (points,).
        num_samples: number of samples; some may have no points.
    """

    batch_index: Tensor
    num_samples: int

    def counts(self, strips: int) -> Tensor:
        """Return the number of points of each sample, (n, 1, 1)."""
        zeros = self.batch_index.new_zeros(self.num_samples)
        return zeros.index_add(0, self.batch_index, torch.ones_like(self.batch_index))[:, None, None]

    def keep(self, values: Tensor) -> Tensor:
        """Return the values unchanged: no point is hidden."""
        return values

    def sum(self, values: Tensor, units: int, strips: int) -> Tensor:
        """Return the sums of values (points, c) over each sample and unit of channels, (n, units, 1), in the dtype of tables."""
        points, c = values.shape
        sums = values.reshape(points, units, c // units).sum(2).to(table_dtype(values))
        return sums.new_zeros(self.num_samples, units).index_add(0, self.batch_index, sums)[..., None]

    def expand(self, table: Tensor, x: Tensor) -> Tensor:
        """Return the row of the sample of each point; a table with one row is returned as it is, (1, c)."""
        rows = table[..., 0]
        return rows if rows.shape[0] == 1 else rows.index_select(0, self.batch_index)


Ragged = Mask | Points


def as_rows(x: Tensor, units: int, strips: int) -> Tensor:
    """Reshape x to (n, units, channels per unit, strips, positions per strip)."""
    n, c = x.shape[:2]
    return x.reshape(n, units, c // units, strips, math.prod(x.shape[2:]) // strips)


def expand_table(table: Tensor, x: Tensor) -> Tensor:
    """Reshape a table that broadcasts to (n, c, strips) to a tensor that broadcasts to x."""
    space = x.shape[2:]
    if table.shape[-1] == 1:
        return table.reshape(*table.shape[:2], *(1 for _ in space))
    n, c, t = table.shape
    return table[..., None].expand(n, c, t, math.prod(space) // t).reshape(n, c, *space)
