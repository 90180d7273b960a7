"""Synchronization of statistics over several processes.

Each process computes the moments of its samples per channel and strip. Only these moments are exchanged, once per layer and
forward pass (twice for `brn` and `gbgn`), and pooled exactly, so that ranks may have different numbers of samples, or none.

    forward    all_gather: every rank receives the moments of all ranks
    backward   all_reduce: every rank receives the sum of the gradients with respect to its moments
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from anynorm.core.compat import process_group_name, process_group_named
from anynorm.core.moments import Moments, pool_stacked
from anynorm.errors import AnynormError


class SyncGroup(Protocol):
    """The processes over which statistics are synchronized."""

    @property
    def is_synchronized(self) -> bool:
        """Whether moments are exchanged with other processes."""

    @property
    def name(self) -> str:
        """Name of the process group in torch; empty without synchronization."""

    def pool_moments(self, moments: Moments) -> Moments:
        """Return the moments over the samples of all processes."""

    def sum(self, table: Tensor) -> Tensor:
        """Return the sum of a table over all processes, without gradients."""

    def average(self, tables: list[Tensor], weight: Tensor) -> list[Tensor]:
        """Return the weighted averages of tables over all processes, without gradients."""


@dataclass(frozen=True)
class NoSync:
    """No synchronization: statistics are computed over the samples of this process."""

    is_synchronized = False
    name = ""

    def pool_moments(self, moments: Moments) -> Moments:
        """Return the moments unchanged."""
        return moments

    def sum(self, table: Tensor) -> Tensor:
        """Return the table unchanged."""
        return table

    def average(self, tables: list[Tensor], weight: Tensor) -> list[Tensor]:
        """Return the tables unchanged."""
        return tables


class _Gather(torch.autograd.Function):
    """Stack the tables of all ranks; its backward is `_SumOwn`."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, group: Any) -> Tensor:
        ctx.group = group
        stacked = table.new_empty(dist.get_world_size(group), *table.shape)
        dist.all_gather(list(stacked.unbind()), table.contiguous(), group=group)
        return stacked

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _sum_own(grad, ctx.group), None


class _SumOwn(torch.autograd.Function):
    """Sum the gradients with respect to this rank's table over all ranks; its backward is `_Gather`."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, group: Any) -> Tensor:
        ctx.group = group
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total[dist.get_rank(group)]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gather(grad, ctx.group), None


_gather: Callable[[Tensor, Any], Tensor] = _Gather.apply
_sum_own: Callable[[Tensor, Any], Tensor] = _SumOwn.apply


@dataclass(frozen=True, eq=False)
class AllReduce:
    """Synchronization over the processes of a group.

    Args:
        group: the process group; None for the default group.
    """

    group: Any = None
    is_synchronized = True

    def _is_single_process(self) -> bool:
        return not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(self.group) == 1

    @property
    def name(self) -> str:
        """Name of the process group in torch; empty without other processes."""
        return "" if self._is_single_process() else process_group_name(self.group)

    def pool_moments(self, moments: Moments) -> Moments:
        """Return the moments over the samples of all ranks, with gradients, in one exchange."""
        if self._is_single_process():
            return moments
        packed = torch.stack([table.expand_as(moments.mean) for table in moments])
        return pool_stacked(Moments(*_gather(packed, self.group).unbind(1)))

    def sum(self, table: Tensor) -> Tensor:
        """Return the sum of a table over ranks, without gradients."""
        if self._is_single_process():
            return table
        total = table.detach().clone()
        dist.all_reduce(total, group=self.group)
        return total

    def average(self, tables: list[Tensor], weight: Tensor) -> list[Tensor]:
        """Return the averages of tables over ranks, weighted by the `weight` of each rank, without gradients."""
        if self._is_single_process():
            return tables
        total = torch.stack([*(weight * table for table in tables), weight.expand_as(tables[0])])
        dist.all_reduce(total, group=self.group)
        return [table / total[-1].clamp(min=1) for table in total[:-1]]

    def __deepcopy__(self, memo: dict[int, Any]) -> AllReduce:
        return self

    def __reduce__(self) -> Any:
        if self.group is not None:
            raise AnynormError(
                "A model synchronized over a custom process group cannot be pickled: the group is not part of the model. "
                "Save its state_dict, or call anynorm.sync(model, on=False) first."
            )
        return AllReduce, ()


def sync_group_named(name: str) -> SyncGroup:
    """Return the synchronization over the process group of a given name; none if the name is empty."""
    return AllReduce(process_group_named(name)) if name else NoSync()
