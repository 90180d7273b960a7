"""Base class of norms with a schedule: a counter of training passes, and linear ramps between two passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from anynorm.core.compat import is_exporting, is_recomputing, recomputing
from anynorm.errors import SpecError
from anynorm.kernels.interface import BatchStats
from anynorm.layers.norm import CustomNorm
from anynorm.layers.registered import RegisteredNorm


class ScheduledNorm(CustomNorm, RegisteredNorm):
    """A norm that counts its forward passes in training. The counter, the ramps and the hyperparameters are buffers.

    Attributes:
        RAMPS: the default (first, last) pass of each ramp, before `set_total_steps` is called.
        schedule_enabled: whether to count forward passes; disabled by surgery that runs a norm in train mode.
    """

    RAMPS: ClassVar[Mapping[str, tuple[int, int]]] = {}
    schedule_enabled: bool = True
    num_passes: Tensor

    def _register_parameters(self, device: Any, dtype: Any) -> None:
        super()._register_parameters(device, dtype)
        self._initial = dict(self.hyperparameters)
        for name, value in self._initial.items():
            self.register_buffer(name, torch.tensor(value, device=device, dtype=dtype))
        for name, ramp in self.RAMPS.items():
            self.register_buffer(name, torch.tensor(ramp, device=device))
        self.register_buffer("num_passes", torch.zeros((), dtype=torch.long, device=device))

    def reset_parameters(self) -> None:
        """Reset all parameters, the counter, the ramps and the hyperparameters."""
        super().reset_parameters()
        self.num_passes.zero_()
        for name, value in self._initial.items():
            self.get_buffer(name).fill_(value)
        for name, ramp in self.RAMPS.items():
            self._set_ramp(name, *ramp)

    def set_hyperparameters(self, **values: float) -> None:
        """Set hyperparameters, which are not part of the spec; if one is invalid, none is changed.

        Raises:
            SpecError: if a name is unknown, or a value is not a finite number of at least 0.
        """
        for name, value in values.items():
            if name not in self.hyperparameters:
                raise SpecError(f"{self.name} has no hyperparameter {name!r}. Usable: {' '.join(self.hyperparameters)}.")
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise SpecError(f"{name} of {self.name} must be a finite number of at least 0; got {value!r}.")
        self._initial |= values
        for name, value in values.items():
            self.get_buffer(name).fill_(value)

    def extra_repr(self) -> str:
        """Return the spec, the number of channels, the options and the hyperparameters."""
        buffers = {name: self.get_buffer(name) for name in self.hyperparameters}
        values = {name: self._initial[name] if buffer.is_meta else float(buffer) for name, buffer in buffers.items()}
        return ", ".join([super().extra_repr(), *(f"{name}={value:g}" for name, value in values.items())])

    def _set_ramp(self, name: str, first: int, last: int) -> None:
        ramp = self.get_buffer(name)
        ramp[0], ramp[1] = first, max(last, first + 1)

    @property
    def advances_schedule(self) -> bool:
        """Whether a forward pass is counted."""
        return self.training and self.schedule_enabled and self.update_rule.updates

    def progress(self, name: str, passes: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the progress of a ramp after a given number of passes, from 0 to 1."""
        first, last = self.get_buffer(name).unbind()
        return ((passes - first).to(dtype) / (last - first)).clamp(0, 1)

    def update_running_stats(self, batch: BatchStats) -> None:
        """Update the running statistics and increment the counter of passes."""
        super().update_running_stats(batch)
        if self.advances_schedule and not is_recomputing():
            step: Any = 1
            if torch.compiler.is_compiling() and not is_exporting():
                step = 1 - recomputing(self.num_passes).long()
            self.num_passes.add_(step)
