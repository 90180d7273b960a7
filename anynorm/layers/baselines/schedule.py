"""Norms that change in the course of training: how many passes they have had, and between which of them something rises."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from anynorm.kernels.interface import BatchStats
from anynorm.layers.registered import RegisteredNorm
from anynorm.layers.running_stats import is_recomputing, recomputing
from anynorm.layers.state import CustomNorm


class Scheduled(CustomNorm, RegisteredNorm):
    """Counts its passes in training, in a buffer, and knows ramps: (first, last) pass, in buffers too.

    Attributes:
        RAMPS: the buffers of ramps, and where they lie before anybody has told how long training will be.
        moves: whether time passes; surgery that runs a norm in train mode stops it.
    """

    RAMPS: ClassVar[dict[str, tuple[int, int]]] = {}
    schedule_enabled: bool = True
    num_passes: Tensor

    def _register_parameters(self, device: Any, dtype: Any) -> None:
        super()._register_parameters(device, dtype)
        for name, limit in self.settings.items():
            self.register_buffer(name, torch.tensor(limit, device=device, dtype=dtype))
        for name, ramp in self.RAMPS.items():
            self.register_buffer(name, torch.tensor(ramp, device=device))
        self.register_buffer("num_passes", torch.zeros((), dtype=torch.long, device=device))

    def reset_parameters(self) -> None:
        """Start over, the schedule too."""
        super().reset_parameters()
        self.num_passes.zero_()
        for name, limit in self.settings.items():
            self.get_buffer(name).fill_(limit)
        for name, ramp in self.RAMPS.items():
            self._place(name, *ramp)

    def _place(self, ramp: str, first: int, last: int) -> None:
        buffer = self.get_buffer(ramp)
        buffer[0], buffer[1] = first, max(last, first + 1)

    @property
    def learns_schedule(self) -> bool:
        """Whether a forward pass counts."""
        return self.training and self.schedule_enabled and self.update_rule.learns

    def progress(self, ramp: str, passes: Tensor, dtype: torch.dtype) -> Tensor:
        """Say how much of a ramp is done after so many passes, from 0 to 1."""
        first, last = self.get_buffer(ramp).unbind()
        return ((passes - first).to(dtype) / (last - first)).clamp(0, 1)

    def update_running_stats(self, batch: BatchStats) -> None:
        """Move what is kept by one batch, and the schedule by one pass."""
        super().update_running_stats(batch)
        if self.learns_schedule and not is_recomputing():
            step: Any = 1
            if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
                step = 1 - recomputing(self.num_passes).long()
            self.num_passes.add_(step)
