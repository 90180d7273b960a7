"""Temporary replacement of the buffers of a model inside a `with` block.

The buffer is assigned another tensor and then the original tensor again, which is never written to. So an autograd graph before
its backward pass, and any other reference to the original tensor, keeps its values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anynorm.core.cuts import Cut
from anynorm.errors import DiagnosticError
from anynorm.surgery.find import NormSite


class BufferRef(NamedTuple):
    """A buffer, identified by its module and its name in that module."""

    module: nn.Module
    name: str

    @property
    def tensor(self) -> Tensor:
        """The current tensor of the buffer."""
        tensor = self.module._buffers[self.name]
        assert tensor is not None  # references are made from buffers that are not None
        return tensor


StatBuffers = dict[Cut, tuple[BufferRef | None, BufferRef | None]]
"""The buffers of the running mean and the running variance of each cut; None for a statistic that is not tracked."""


def running_stat_buffers(site: NormSite) -> StatBuffers:
    """Return the buffers that hold the running statistics of a norm, without copying them.

    Raises:
        DiagnosticError: if a running statistic is not a buffer of the norm.
    """
    refs = {id(tensor): BufferRef(module, name) for module in site.module.modules() for name, tensor in module._buffers.items()}
    buffers: StatBuffers = {}
    for cut, stats in site.info.running_stats.items():
        if any(tensor is not None and id(tensor) not in refs for tensor in stats):
            raise DiagnosticError(
                f"The running statistics of '{site.path}' ({site.label}) must be buffers of that module to be diagnosed."
            )
        mean, var = (None if tensor is None else refs[id(tensor)] for tensor in stats)
        buffers[cut] = (mean, var)
    return buffers


@contextmanager
def swap_buffers(values: Mapping[BufferRef, Tensor]) -> Iterator[None]:
    """Replace buffers by copies of `values` inside a `with` block; restore the original tensors on exit."""
    originals = {ref: ref.tensor for ref in values}
    try:
        for ref, value in values.items():
            ref.module._buffers[ref.name] = value.detach().to(originals[ref], copy=True).contiguous()
        yield
    finally:
        for ref, tensor in originals.items():
            ref.module._buffers[ref.name] = tensor


@contextmanager
def preserve_buffers(model: nn.Module) -> Iterator[None]:
    """Restore all buffers of a model and torch's random state on exit, such as after a forward pass in train mode.

    >>> model = nn.BatchNorm1d(2)
    >>> with preserve_buffers(model):
    ...     _ = model(torch.randn(8, 2))
    >>> model.running_mean
    tensor([0., 0.])
    """
    refs = [
        BufferRef(module, name) for module in model.modules() for name, buffer in module._buffers.items() if buffer is not None
    ]
    devices = {tensor.device for tensor in [*model.parameters(), *model.buffers()] if tensor.is_cuda}
    with torch.random.fork_rng(devices=devices), swap_buffers({ref: ref.tensor for ref in refs}):
        yield
