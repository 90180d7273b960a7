"""Recognition of LayerNorms and RMSNorms over the channels of each position, by their output.

    pn      γ (x − mean)/√(var + ε) + β
    rms     γ x/√(mean(x²) + ε)

Packages have a class per model (`LlamaRMSNorm`, `T5LayerNorm`, `GemmaRMSNorm`, whose γ is 1 + weight), and names do not show the
equation: timm's `SimpleNorm` and early `RmsNorm` divide by the standard deviation without subtracting the mean. So a copy of the
module runs on small inputs, with channels in the last axis or in axis 1, and its outputs are compared with both equations.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from anynorm.core.spec import NormSpec
from anynorm.layers.registered import REGISTRY, RegisteredNorm
from anynorm.norms import PN
from anynorm.surgery.norm_info import NormInfo

_EPS_NAMES = ("eps", "variance_epsilon", "epsilon")
_TENSOR_NAMES = ("weight", "bias")
_SHAPES: dict[int, list[tuple[int, ...]]] = {-1: [(2, 3, 5, 0), (2, 3, 0)], 1: [(2, 0, 3, 5)]}
"""Shapes of the inputs by axis of the channels, for which 0 stands."""
TOLERANCE = 1e-3


class Equation(NamedTuple):
    """What a module may compute.

    Attributes:
        name: name of the norm.
        offset: the number that is added to the weight.
        channel_axis: axis of the channels.
    """

    name: str
    offset: float
    channel_axis: int

    def __call__(self, x: Tensor, tensors: dict[str, Tensor], eps: float) -> Tensor:
        """Return the output for x, by torch's functions."""
        rows, shape = x.movedim(self.channel_axis, -1), (x.shape[self.channel_axis],)
        weight, bias = self.scale(tensors), tensors.get("bias")
        if self.name == "pn":
            y = functional.layer_norm(rows, shape, weight, bias, eps)
        else:
            y = functional.rms_norm(rows, shape, weight, eps)
            y = y if bias is None else y + bias
        return y.movedim(-1, self.channel_axis)

    def scale(self, tensors: dict[str, Tensor]) -> Tensor | None:
        """Return γ."""
        weight = tensors.get("weight")
        if weight is None or not self.offset:
            return weight
        return (self.offset + weight.detach()).requires_grad_(weight.requires_grad)


def identify(module: nn.Module) -> NormInfo | None:
    """Return the description of a LayerNorm or RMSNorm over the channels of each position; None for any other module.

    >>> class CenteredNorm(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.weight, self.eps = nn.Parameter(torch.ones(8)), 1e-6
    ...     def forward(self, x):
    ...         return nn.functional.layer_norm(x, (8,), self.weight, None, self.eps)
    >>> identify(CenteredNorm()).spec
    'pn.nobias'
    """
    tensors, eps = tensors_of_norm(module), _eps(module)
    shape = tuple(getattr(module, "normalized_shape", None) or [len(tensor) for tensor in tensors.values() if tensor.dim()][:1])
    names = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    is_simple = not names - set(_TENSOR_NAMES) and not list(module.children()) and all(t.dim() == 1 for t in tensors.values())
    if len(shape) != 1 or eps is None or not is_simple:
        return None
    for channel_axis in _SHAPES:
        equation = _equation(module, int(shape[0]), channel_axis)
        if equation is not None:
            scaled = {**tensors, "weight": equation.scale(tensors)} if "weight" in tensors else tensors
            return describe(equation.name, int(shape[0]), eps, scaled, channel_axis=channel_axis)  # type: ignore[arg-type]
    return None


def describe(name: str, channels: int, eps: float, tensors: dict[str, Tensor], *, channel_axis: int) -> NormInfo:
    """Return the description of pn or rms with the affine that it has tensors for."""
    has_shift = name == "rms" and "bias" in tensors
    norm_spec = NormSpec((), (PN,)) if has_shift else define(REGISTRY[name], tensors)
    return NormInfo(norm_spec, channels, eps, tensors=tensors, channel_axis=channel_axis)


def define(norm_class: type[RegisteredNorm], tensors: dict[str, Tensor], **arguments: int) -> NormSpec:
    """Return the definition of a norm with the affine that it has tensors for."""
    norm_spec = norm_class.named_spec(arguments)
    if "weight" not in tensors:
        return norm_spec.without_affine()
    return norm_spec if "bias" in tensors else norm_spec.without_bias()


def tensors_of_norm(module: nn.Module) -> dict[str, Tensor]:
    """Return weight and bias of a module, if it has them."""
    return {name: tensor for name in _TENSOR_NAMES if (tensor := getattr(module, name, None)) is not None}


def _eps(module: nn.Module) -> float | None:
    """Return ε, which is that of the dtype of the parameters if nn.RMSNorm has none; None for a module without it."""
    name = next((name for name in _EPS_NAMES if hasattr(module, name)), None)
    if name is None:
        return None
    eps = getattr(module, name)
    dtype = next((tensor.dtype for tensor in tensors_of_norm(module).values()), torch.float32)
    return torch.finfo(dtype).eps if eps is None else float(eps)


@torch.no_grad()
def _equation(module: nn.Module, channels: int, channel_axis: int) -> Equation | None:
    """Return the equation of a module with channels in a given axis; None if it has neither, or does not take such inputs."""
    try:
        probe: Any = copy.deepcopy(module).to_empty(device="cpu").float().eval()
    except Exception:  # an attribute of another package may not be copyable
        return None
    tensors, eps = tensors_of_norm(probe), _eps(probe) or 0.0
    for index, tensor in enumerate(tensors.values()):
        tensor.copy_(torch.linspace(0.5 - index, 1.5, channels))
    generator = torch.Generator().manual_seed(0)
    equations = [Equation(name, offset, channel_axis) for name in ("pn", "rms") for offset in (0.0, 1.0)]
    for size in (1.0, (eps or 1.0) ** 0.5):  # ε matters for values near its square root
        for shape in _SHAPES[channel_axis]:
            x = (0.5 + torch.randn([length or channels for length in shape], generator=generator)) * size
            try:
                y = type(module).forward(probe, x.clone())
            except Exception:  # a forward of another package may raise anything on an input that it does not support
                return None
            equations = [equation for equation in equations if _is_close(y, equation(x, tensors, eps))]
    return next(iter(equations), None)


def _is_close(y: Any, expected: Tensor) -> bool:
    is_tensor = isinstance(y, Tensor) and y.shape == expected.shape
    return is_tensor and torch.allclose(y.float(), expected, rtol=TOLERANCE, atol=TOLERANCE)
