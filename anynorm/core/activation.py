"""Activations that a norm applies to its output in the same pass over x, after it adds a residual.

    y = φ(a (x − mean) + b + residual)

The names are those of torch.nn.functional; `gelu_tanh` is gelu with approximate="tanh".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from anynorm.errors import SpecError

MODULES: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "leaky_relu": nn.LeakyReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "hardswish": nn.Hardswish,
}
"""The modules of torch by name, in the order of `Activation.index`."""
_SIGN_KEEPING = ("relu", "relu6", "leaky_relu")


@dataclass(frozen=True)
class Activation:
    """An activation.

    Args:
        name: its name in torch.nn.functional, or gelu_tanh.
        negative_slope: slope of leaky_relu for negative inputs; at least 0, and 0.01 in torch. All other activations ignore it.

    Raises:
        SpecError: if the name is unknown or the slope is negative.

    >>> Activation("relu")(Tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """

    name: str
    negative_slope: float = 0.01

    def __post_init__(self) -> None:
        if self.name not in MODULES:
            raise SpecError(f"activation must be one of {' '.join(MODULES)}; got {self.name!r}.")
        if not self.negative_slope >= 0:
            raise SpecError(f"negative_slope must be at least 0; got {self.negative_slope}. Apply nn.LeakyReLU after the norm.")

    def __call__(self, x: Tensor) -> Tensor:
        """Return φ(x)."""
        if self.name == "leaky_relu":
            return functional.leaky_relu(x, self.negative_slope)
        if self.name == "gelu_tanh":
            return functional.gelu(x, approximate="tanh")
        function: Callable[[Tensor], Tensor] = getattr(functional, self.name)
        return function(x)

    @property
    def index(self) -> int:
        """The number of the activation in the kernels; 0 is none."""
        return 1 + list(MODULES).index(self.name)

    @property
    def keeps_sign(self) -> bool:
        """Whether the derivative at z can be computed from φ(z), so that backward needs y instead of x and the residual."""
        return self.name in _SIGN_KEEPING

    def gradient_from_output(self, y: Tensor, dy: Tensor) -> Tensor:
        """Return dy φ'(z) from y = φ(z), for activations that keep the sign; it can be differentiated with respect to dy."""
        positive = (y > 0) & (y < 6) if self.name == "relu6" else y > 0
        other = dy * self.negative_slope if self.name == "leaky_relu" else torch.zeros_like(dy)  # 0 also where dy is infinite
        return torch.where(positive, dy, other)

    def module(self) -> nn.Module:
        """Return torch's module of this activation."""
        return nn.LeakyReLU(self.negative_slope) if self.name == "leaky_relu" else MODULES[self.name]()


def activation_at(index: int, slope: float) -> Activation | None:
    """Return the activation of an index in the kernels."""
    return Activation(list(MODULES)[index - 1], slope) if index else None


def read_activation(value: Any) -> Activation | None:
    """Return the activation of a name, of a module of torch, or of an `Activation`; None for None and nn.Identity.

    Raises:
        SpecError: if it is none of these.

    >>> read_activation("silu"), read_activation(nn.GELU(approximate="tanh"))
    (Activation(name='silu', negative_slope=0.01), Activation(name='gelu_tanh', negative_slope=0.01))
    """
    if value is None or type(value) is nn.Identity or isinstance(value, Activation):
        return value if isinstance(value, Activation) else None
    if isinstance(value, str):
        return Activation(value)
    if type(value) is nn.LeakyReLU:
        return Activation("leaky_relu", value.negative_slope)
    if type(value) is nn.GELU:
        return Activation("gelu_tanh" if value.approximate == "tanh" else "gelu")
    for name, module in MODULES.items():
        if type(value) is module:
            return Activation(name)
    raise SpecError(f"activation must be one of {' '.join(MODULES)}, or torch's module of one; got {value!r}.")
