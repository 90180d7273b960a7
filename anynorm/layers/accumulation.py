"""Statistics of the micro-batches of one optimizer step, pooled as if they were one batch (gradient accumulation).

The moments of a group of `steps` micro-batches are those of the union of their values, exactly (law of total variance).
Statistics of ghost batches are averaged, as within a batch. The update rule is applied once per group, after its last
micro-batch.

No tensor value is read, so the same code runs eagerly and in compiled code, and does not synchronize devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from anynorm.core.moments import MIN_COUNT, Moments, pool_stacked
from anynorm.core.update_rules import Observation, Stats


class _Tables(NamedTuple):
    """The tables of a cut; `average` and `num_parts` are used for ghost batches only."""

    moments: Moments
    average: Stats
    num_parts: Tensor


class Accumulator:
    """The pooled statistics of the micro-batches since the last update of a layer's running statistics.

    Args:
        steps: number of micro-batches per update.
        like: a tensor (domains or 1, 1, 1) with the dtype and device of tables of statistics.
        shapes: the shape of the statistics of each cut, (domains or 1, channel parts, space parts).
        ghosts: indices of the cuts that divide the batch into parts of several samples.

    Attributes:
        num_passes: number of micro-batches so far, including those that were skipped.
        num_values: number of values per channel so far, (domains or 1, 1, 1).
    """

    def __init__(self, steps: int, like: Tensor, shapes: dict[int, tuple[int, int, int]], ghosts: set[int]) -> None:
        self.steps, self.ghosts = steps, ghosts
        self.num_passes = torch.zeros((), dtype=torch.long, device=like.device)
        self.num_values = torch.zeros_like(like)
        self.tables = {index: self._make_tables(shape) for index, shape in shapes.items()}

    def _make_tables(self, shape: tuple[int, int, int]) -> _Tables:
        zeros = [self.num_values.new_zeros(shape) for _ in range(5)]
        return _Tables(Moments(*zeros[:3]), Stats(*zeros[3:]), self.num_values.new_zeros(()))

    def _tensors(self) -> list[Tensor]:
        tables = [tensor for each in self.tables.values() for tensor in (*each.moments, *each.average, each.num_parts)]
        return [self.num_passes, self.num_values, *tables]

    def add(self, batch: dict[int, Observation], new_values: Tensor, present: Tensor, is_first: Tensor) -> None:
        """Add a micro-batch.

        Args:
            batch: its statistics for each cut.
            new_values: its number of values per channel in each domain.
            present: whether its statistics in a domain are to be used, (domains or 1, 1, 1).
            is_first: whether this is not a pass that activation checkpointing repeats.
        """

        def keep(table: Tensor) -> Tensor:
            return torch.where(present, table, torch.zeros_like(table))  # also if it is NaN

        if self.num_values.device != new_values.device:
            for tensor in self._tensors():
                tensor.data = tensor.to(new_values.device)
        self.num_passes.add_(is_first)
        self.num_values.add_(keep(new_values))
        share = keep(new_values) / self.num_values.clamp(min=MIN_COUNT)
        for index, new in batch.items():
            tables = self.tables[index]
            members = zip(tables.moments, (table.expand_as(new.moments.mean) for table in new.moments), strict=True)
            merged = pool_stacked(Moments(*(torch.stack([old, keep(table)]) for old, table in members)))
            for old, table in zip(tables.moments, merged, strict=True):
                old.copy_(table)
            if index in self.ghosts:
                for old, table in zip(tables.average, new.average, strict=True):
                    old.add_(share * (keep(table) - old))
                tables.num_parts.add_(present.any() * new.num_parts)

    def observations(self, correction_of: Callable[[int], int]) -> dict[int, Observation]:
        """Return the statistics of all micro-batches as those of one batch.

        Args:
            correction_of: a function that returns Bessel's correction of the variance of a cut, by its index.
        """
        result = {}
        for index, (moments, average, num_parts) in self.tables.items():
            is_ghost, values, correction = index in self.ghosts, self.num_values, correction_of(index)
            statistics = average if is_ghost else Stats(moments.mean, moments.unbiased_var(correction))
            parts = num_parts if is_ghost else 1
            result[index] = Observation(statistics, moments, values, values, values, parts, correction)
        return result

    def is_complete(self) -> Tensor:
        """Whether all micro-batches of an update were added."""
        return self.num_passes >= self.steps

    def restart(self, condition: Tensor) -> None:
        """Start a new group of micro-batches, if a condition (a tensor with one value) is true."""
        for tensor in self._tensors():
            tensor.copy_(torch.where(condition, torch.zeros_like(tensor), tensor))
