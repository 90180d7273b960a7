"""Collective operations of the processes that train one run together. With a single process, they do not communicate.

Gradients are averaged here before an optimizer step, not by `DistributedDataParallel`, which averages in the backward pass and
expects one backward pass per forward pass of a network. A GAN with two losses and a bilevel search do not satisfy this.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Processes:
    """The processes of a run.

    Args:
        count: number of processes; if larger than 1, the default process group must have been initialized.
    """

    count: int = 1

    @property
    def rank(self) -> int:
        """Rank of this process, from 0."""
        return dist.get_rank() if self.count > 1 else 0

    @property
    def is_main(self) -> bool:
        """Whether this is the process with rank 0, which writes results."""
        return self.rank == 0

    def broadcast_bool(self, value: bool) -> bool:
        """Return the value of the main process."""
        if self.count == 1:
            return value
        tensor = torch.tensor(int(value), device=_device())
        dist.broadcast(tensor, 0)
        return bool(tensor)

    def all_true(self, value: bool) -> bool:
        """Whether the value is true in every process."""
        if self.count == 1:
            return value
        tensor = torch.tensor(int(value), device=_device())
        dist.all_reduce(tensor, dist.ReduceOp.MIN)
        return bool(tensor)

    def sum(self, values: list[float]) -> list[float]:
        """Return the sum of each value over the processes."""
        if self.count == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64, device=_device())
        dist.all_reduce(tensor)
        return [float(value) for value in tensor.tolist()]

    def sum_tensor(self, tensor: Tensor) -> Tensor:
        """Return the sum of a CPU tensor over the processes, on the CPU."""
        if self.count == 1:
            return tensor
        total = tensor.to(_device())
        dist.all_reduce(total)
        return total.cpu()

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes in the order of their ranks; the values must be picklable."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait until all processes have called this method."""
        if self.count > 1:
            dist.barrier()

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Average gradients over the processes, in place. All processes must have gradients of the same parameters."""
        if self.count == 1:
            return
        for gradients in _by_dtype(parameter.grad for parameter in parameters if parameter.grad is not None):
            flat = _flatten(gradients) / self.count
            dist.all_reduce(flat)
            _copy_parts(flat, gradients)

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Copy the tensors of the main process to all processes, in place."""
        if self.count == 1:
            return
        for group in _by_dtype(tensor.detach() for tensor in tensors):
            flat = _flatten(group)
            dist.broadcast(flat, 0)
            _copy_parts(flat, group)


def _flatten(tensors: list[Tensor]) -> Tensor:
    """Concatenate tensors into one vector, so that a single collective operation transfers them."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _copy_parts(flat: Tensor, tensors: list[Tensor]) -> None:
    """Copy a vector made by `_flatten` back into the tensors, in place."""
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):  # type: ignore[no-untyped-call]
        tensor.copy_(part.view_as(tensor))


def _by_dtype(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())


def _device() -> str:
    """Return the device that the backend requires: NCCL supports only CUDA tensors."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"
