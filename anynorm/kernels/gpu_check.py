"""Comparison of kernels with the reference on small inputs, for devices on which the kernels have not been tested."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from anynorm.core.activation import Activation
from anynorm.core.affine import PerChannel, PerClass, Style
from anynorm.core.cuts import ALL, Cut
from anynorm.core.spec import AffineSpec, NormSpec
from anynorm.kernels import reference
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params
from anynorm.kernels.sync import NoSync

Normalize = Callable[[ForwardSpec, Tensor, Params, Buffers], tuple[Tensor, BatchStats]]
SN = (Cut(ALL, ALL, 1), Cut(ALL, 1, 1), Cut(1, ALL, 1))
STRIPS, GN = (Cut(1, ALL, 4),), (Cut(ALL, 4, 1),)


class Case(NamedTuple):
    """A pass to compare."""

    norm: NormSpec
    memory_format: torch.memory_format
    activation: Activation | None = None
    has_residual: bool = False


CASES = [
    Case(NormSpec(SN, SN), torch.contiguous_format),
    Case(NormSpec(STRIPS, STRIPS, affine=AffineSpec((PerChannel(), PerClass(3)), 3)), torch.channels_last),
    Case(NormSpec(GN, GN, affine=AffineSpec((Style(),))), torch.contiguous_format, Activation("silu")),
    Case(NormSpec((), GN, affine=AffineSpec((Style(),))), torch.channels_last, Activation("relu"), has_residual=True),
]
"""Mixed statistics; strips, domains and classes; groups, a style and an activation; the same with a mean of 0 and a residual."""
N, C, SIZE = 6, 8, (8, 6)


def find_difference(normalize: Normalize, device: torch.device) -> str:
    """Return a description of the difference between a backend and the reference in float32; empty if there is none."""
    with torch.inference_mode(False), torch.enable_grad():
        for case in CASES:
            expected, actual = (_run(backend, case, device) for backend in (reference.normalize, normalize))
            for a, b in zip(expected, actual, strict=True):
                error, size = float((a - b).abs().max()), float(a.abs().max())
                if not error <= 1e-3 * max(1.0, size):
                    return f"a pass of {case.norm} differs from the reference by {error:.2g}"
    return ""


def _wave(device: torch.device, *shape: int) -> Tensor:
    """Return irregular values without a random generator, whose state must not change."""
    return torch.arange(1, math.prod(shape) + 1, device=device, dtype=torch.float32).mul_(1.7).sin_().reshape(shape) + 0.5


def _run(normalize: Normalize, case: Case, device: torch.device) -> list[Tensor]:
    """Run forward and backward; return the output and the gradients of x, of the parameters and of the residual."""
    norm, cuts = case.norm, case.norm.resolve(C)
    shapes: dict[str, tuple[int, ...]] = {"mean_weight": (3,), "var_weight": (3,)} if len(cuts.mean) > 1 else {}
    shapes |= {name: stage.shape(C) for stage in norm.affine.stages for name in stage.names}
    shapes |= {"style_mean": (N, C), "style_std": (N, C)} if norm.takes_style else {}
    shapes |= {"residual": (N, C, *SIZE)} if case.has_residual else {}
    x = _wave(device, N, C, *SIZE).to(memory_format=case.memory_format).requires_grad_()
    params = {name: _wave(device, *shape).requires_grad_() for name, shape in shapes.items()}
    labels = torch.arange(N, device=device) % 3 if norm.num_classes else None
    spec = ForwardSpec(norm, cuts, C, 1e-5, tuple(True for _ in cuts.distinct), NoSync(), case.activation)
    y, _ = normalize(spec, x, Params(**params), Buffers(tuple((None, None) for _ in cuts.distinct), labels))
    grads = torch.autograd.grad(y, [x, *params.values()], _wave(device, *y.shape))
    return [y.detach(), *grads]
