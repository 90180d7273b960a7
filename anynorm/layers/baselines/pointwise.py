"""Point-wise functions in place of a norm: a bounded function of each value, without statistics.

    dyt     y = γ tanh(α x) + β         Dynamic Tanh (Zhu et al. 2025, arXiv 2503.10622): α = 0.5 at the start
    derf    y = γ erf(α x + s) + β      Dynamic erf (Chen et al. 2025, arXiv 2512.10938, eq. 10): α = 0.5, s = 0 at the start

α and s are one number per layer, γ and β one per channel. Parameters have the names and shapes of the authors' code (`alpha`,
`shift`, `weight`, `bias`), so its checkpoints can be loaded. Both papers replace the LN or RMSNorm of transformers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anynorm import kernels
from anynorm.core.spec import NormSpec
from anynorm.errors import SpecError
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params
from anynorm.layers.norm import CustomNorm
from anynorm.layers.registered import RegisteredNorm, RegisteredOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


class PointwiseNorm(CustomNorm, RegisteredNorm):
    """Base class of point-wise functions, y = γ f(α x) + β. For all other arguments, see `RegisteredNorm`.

    Args:
        alpha_init_value: initial value of α.
    """

    define = staticmethod(lambda: NormSpec((), ()))
    hyperparameters = {"alpha_init_value": 0.5}
    alpha_init_value: float = 0.5
    alpha: nn.Parameter

    def __init__(self, num_features: int, *, alpha_init_value: float = 0.5, **options: Unpack[RegisteredOptions]) -> None:
        if (
            isinstance(alpha_init_value, bool)
            or not isinstance(alpha_init_value, int | float)
            or not 0 < alpha_init_value < math.inf
        ):
            raise SpecError(
                f"alpha_init_value of {self.name} must be a finite number above 0; got {alpha_init_value!r}. Usual: 0.5."
            )
        super().__init__(num_features, **options)
        self.alpha_init_value = float(alpha_init_value)
        nn.init.constant_(self.alpha, self.alpha_init_value)

    def _register_parameters(self, device: Any, dtype: Any) -> None:
        super()._register_parameters(device, dtype)
        self.alpha = nn.Parameter(torch.empty(1, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Reset γ = 1, β = 0 and α to its initial value."""
        super().reset_parameters()
        nn.init.constant_(self.alpha, self.alpha_init_value)

    def function(self, x: Tensor) -> Tensor:
        """Return f(α x), the output without γ and β, for x in float32 or float64."""
        raise NotImplementedError

    def not_foldable_reason(self) -> str | None:
        """Return why the layer cannot be folded: it is not linear."""
        return "it is not linear in its input, so no fixed (a, b) exists"

    def _compute_output(self, spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
        y = self.function(kernels.at_least_float32(x))
        shape = (1, -1, *(1 for _ in x.shape[2:]))
        if params.weight is not None:
            y = y * params.weight.to(y.dtype).reshape(shape)
        if params.bias is not None:
            y = y + params.bias.to(y.dtype).reshape(shape)
        return y.to(x.dtype), BatchStats([])

    def extra_repr(self) -> str:
        """Return the spec, the number of channels, and the initial value of α."""
        shown = [repr(self.spec), str(self.num_features), f"alpha_init_value={self.alpha_init_value:g}"]
        shown += [] if self.activation is None else [f"activation={self.activation.name!r}"]
        shown += [] if self.channel_axis == 1 else [f"channel_axis={self.channel_axis}"]
        return ", ".join(shown)


class DynamicTanh(PointwiseNorm):
    """Dynamic Tanh: a scaled tanh of each value, without statistics.

        y = γ tanh(α x) + β

    For its arguments, see `PointwiseNorm`.
    """

    name, paper = "dyt", "Zhu et al. 2025"
    use = (
        "Transformers without statistics, trained from the start; the authors report that it does not replace the BN of ResNets."
    )

    def function(self, x: Tensor) -> Tensor:
        """Return tanh(α x)."""
        return torch.tanh(x * self.alpha.to(x.dtype))


class DynamicErf(PointwiseNorm):
    """Dynamic erf: a scaled and shifted Gauss error function of each value, without statistics.

        y = γ erf(α x + s) + β

    For its arguments, see `PointwiseNorm`.
    """

    name, paper = "derf", "Chen et al. 2025"
    use = "As dyt; its authors report higher accuracy."
    shift: nn.Parameter

    def _register_parameters(self, device: Any, dtype: Any) -> None:
        super()._register_parameters(device, dtype)
        self.shift = nn.Parameter(torch.empty(1, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Reset γ = 1, β = 0, s = 0 and α to its initial value."""
        super().reset_parameters()
        nn.init.zeros_(self.shift)

    def function(self, x: Tensor) -> Tensor:
        """Return erf(α x + s)."""
        return torch.erf(x * self.alpha.to(x.dtype) + self.shift.to(x.dtype))
