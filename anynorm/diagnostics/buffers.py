"""Buffers as places: for a while a place holds another tensor, and the tensor that belongs there is never written to.

So a graph that waits for its backward pass, or a tensor somebody holds on to, sees nothing of it.
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


class Slot(NamedTuple):
    """A place for a buffer."""

    module: nn.Module
    name: str

    @property
    def tensor(self) -> Tensor:
        """What it holds now."""
        tensor = self.module._buffers[self.name]
        assert tensor is not None  # slots are made of buffers that are there
        return tensor


Slots = dict[Cut, tuple[Slot | None, Slot | None]]


def kept_slots(site: NormSite) -> Slots:
    """Give the places of the mean and the variance that a norm keeps for each cut, as long as what was read is in them."""
    places = {id(tensor): Slot(module, name) for module in site.module.modules() for name, tensor in module._buffers.items()}
    found: Slots = {}
    for cut, kept in site.info.running_stats.items():
        if any(tensor is not None and id(tensor) not in places for tensor in kept):
            raise DiagnosticError(f"'{site.path}' ({site.label}) keeps statistics that are not buffers of its own.")
        mean, var = (None if tensor is None else places[id(tensor)] for tensor in kept)
        found[cut] = (mean, var)
    return found


@contextmanager
def swap_buffers(values: Mapping[Slot, Tensor]) -> Iterator[None]:
    """Put tensors into places, and those that were there back."""
    old = {slot: slot.tensor for slot in values}
    try:
        for slot, value in values.items():
            slot.module._buffers[slot.name] = value.detach().to(old[slot], copy=True).contiguous()
        yield
    finally:
        for slot, tensor in old.items():
            slot.module._buffers[slot.name] = tensor


@contextmanager
def preserve_buffers(model: nn.Module) -> Iterator[None]:
    """Put back what running a model in train mode would move: its buffers, and torch's random numbers."""
    slots = [Slot(module, name) for module in model.modules() for name, buffer in module._buffers.items() if buffer is not None]
    with torch.random.fork_rng(), swap_buffers({slot: slot.tensor for slot in slots}):
        yield
