"""A norm whose number of channels is that of its first input, as torch's lazy layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter, is_lazy

from anynorm.layers.channel_axis import resolve_axis
from anynorm.layers.norm import Norm


class LazyNorm(LazyModuleMixin, nn.Module):
    """A norm that becomes the layer of a spec at the first forward pass, or when a state_dict with its parameters is loaded.

    `anynorm.make(spec, None)` makes it. Until then it has one uninitialized parameter, whose device and dtype it takes over.

    Args:
        spec: the spec, for messages.
        make: a function of the number of channels, `device` and `dtype` that makes the norm.
        channel_axis: axis of the channels in the input.
        device: device of parameters and buffers.
        dtype: dtype of parameters and buffers.

    >>> import anynorm, torch
    >>> model = nn.Sequential(nn.LazyConv2d(8, 3), anynorm.make("gn:4", None))
    >>> _ = model(torch.zeros(2, 3, 5, 5))
    >>> model[1]
    GroupNorm('gn:4', 8, eps=1e-05)
    """

    def __init__(self, spec: str, make: Callable[..., Norm], *, channel_axis: int, device: Any, dtype: Any) -> None:
        super().__init__()
        self.spec, self.channel_axis, self._make = spec, channel_axis, make
        self.weight: Any = UninitializedParameter(device=device, dtype=dtype)  # type: ignore[call-arg]

    def initialize_parameters(self, input: Tensor, *args: Any, **options: Any) -> None:  # noqa: A002
        """Become the norm for the channels of an input; called before the first forward pass."""
        if is_lazy(self.weight):
            self._become(input.shape[resolve_axis(self.channel_axis, input.dim())])

    def forward(self, *args: Any, **options: Any) -> Tensor:
        """Return the output of the norm that this module has become: its first pass, which `nn.Module` began before."""
        output: Tensor = type(self).forward(self, *args, **options)
        return output

    def _lazy_load_hook(self, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        """Become the norm for the channels of the parameters that are loaded; torch's hook, called before loading."""
        for name in ("weight", "class_weight"):
            loaded = state_dict.get(prefix + name)
            if loaded is not None and not is_lazy(loaded) and is_lazy(self.weight):
                self._become(loaded.shape[-1])

    def _become(self, num_features: int) -> None:
        """Take over the attributes of the norm; the hooks of this module stay, and torch's hook sets the class."""
        norm = self._make(num_features, device=self.weight.device, dtype=self.weight.dtype).train(self.training)
        del self.spec, self.channel_axis, self._make
        own = {name: value for name, value in vars(self).items() if "hook" in name}
        vars(self).update(vars(norm) | own)
        self.cls_to_become = type(norm)

    def extra_repr(self) -> str:
        """Return the spec."""
        return f"{self.spec!r}, None" if is_lazy(self.weight) else ""
