"""Statistics over several processes.

Every cut that pools over samples starts from one small table, the moments of this process's samples per channel. That
table alone is exchanged, once a layer and pass (twice for `brn`), and united exactly: ranks may hold different numbers of
samples, or none.

    forward   gather:  every rank gets the tables of all        backward   each rank gets the sum of its table's gradients
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from anynorm.core.moments import Moments, pool_stacked
from anynorm.errors import AnynormError


class _Gather(torch.autograd.Function):
    """Stacks the tables of all ranks; `_Return` is its adjoint, and the other way round."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, group: Any) -> Tensor:
        ctx.group = group
        stacked = table.new_empty(dist.get_world_size(group), *table.shape)
        dist.all_gather(list(stacked.unbind()), table.contiguous(), group=group)
        return stacked

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _return(grad, ctx.group), None


class _Return(torch.autograd.Function):
    """Sums what all ranks hold for this rank's table."""

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
_return: Callable[[Tensor, Any], Tensor] = _Return.apply


@dataclass(frozen=True)
class NoSync:
    """Sees the samples of this process."""

    def all_reduce(self, moments: Moments) -> Moments:
        """Leave this process's moments."""
        return moments

    def average(self, tables: list[Tensor], weight: Tensor) -> list[Tensor]:
        """Leave this process's averages."""
        return tables


@dataclass(frozen=True, eq=False)
class AllReduce:
    """Sees the samples of every process of a group; a single process is alone."""

    group: Any = None

    def _is_alone(self) -> bool:
        return not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(self.group) == 1

    def all_reduce(self, moments: Moments) -> Moments:
        """Unite the moments of all ranks, differentiably, in one exchange."""
        if self._is_alone():
            return moments
        packed = torch.stack([table.expand_as(moments.mean) for table in moments])
        return pool_stacked(Moments(*_gather(packed, self.group).unbind(1)))

    def average(self, tables: list[Tensor], weight: Tensor) -> list[Tensor]:
        """Average tables over ranks, each with its own weight; gradients are not followed."""
        if self._is_alone():
            return tables
        total = torch.stack([*(weight * table for table in tables), weight.expand_as(tables[0])])
        dist.all_reduce(total, group=self.group)
        return [table / total[-1].clamp(min=1) for table in total[:-1]]

    def __deepcopy__(self, memo: dict[int, Any]) -> AllReduce:
        return self

    def __reduce__(self) -> Any:
        if self.group is not None:
            raise AnynormError(
                "a model synchronised over a process group of your own cannot be pickled: the group is not part of it. "
                "Save its state_dict, or call anynorm.sync(model, on=False) first."
            )
        return AllReduce, ()


SyncGroup = NoSync | AllReduce


def pooling_norms(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """List the layers of a model that pool over samples, with their paths."""
    return ((path, module) for path, module in model.named_modules() if getattr(module, "pools_samples", False))


def sync(model: nn.Module, group: Any = None, *, on: bool = True) -> list[str]:
    """Make every norm of a model that pools over samples do so over all processes (or no more), and list them.

    Only training is synchronised; inference uses what was kept. Norms of torch's own are left as they are.

    Args:
        group: the process group; None is the default group.

    >>> import anynorm
    >>> sync(nn.Sequential(anynorm.make("bn", 8), anynorm.make("gn:2", 8)))
    ['0']
    """
    if on and group is not None and dist.get_rank(group) < 0:
        raise AnynormError("This process is not in the group given to sync: call it with a group that holds this rank.")
    reach: SyncGroup = AllReduce(group) if on else NoSync()
    found = list(pooling_norms(model))
    for _, module in found:
        module.sync_group = reach  # type: ignore[assignment]
    return [path for path, _ in found]
