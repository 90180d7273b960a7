"""The passes that a self-test compares, and the layers and inputs for them.

All tensors come from generators with fixed seeds, so that two devices compare the same numbers and no random state changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from anynorm import kernels
from anynorm.layers.norm import Norm
from anynorm.registry import make, nearest_spec, parse, zoo

SHAPE = (16, 64, 8, 7)
"""The shape for all norms: rows of 56 values, and of 7 in bgn:512, do not fill whole vectors."""
LARGE_SHAPE, VECTORS = (2, 32, 96, 96), (64, 64)
"""Further shapes: rows that the GPU kernels divide among programs, and an input without positions."""
FURTHER_SPECS = ("bn", "ln", "gn:32", "hn:32", "bgn:512", "sn", "sabn@10")
"""The norms for the further shapes."""
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
ACTIVATIONS = (None, "relu", "silu")
"""Of the activations that the kernels compute, one whose backward reads y, and one whose backward reads x."""


@dataclass(frozen=True)
class Case:
    """A pass to compare.

    Args:
        spec: spec string of the norm.
        shape: shape of x.
        dtype: dtype of x and of the residual; parameters and running statistics are float32, as under autocast.
        training: whether the layer is in training mode.
        activation: name of the activation; None without one.
        residual: whether a residual is added.
    """

    spec: str
    shape: tuple[int, ...]
    dtype: str
    training: bool
    activation: str | None
    residual: bool

    @property
    def layouts(self) -> list[str]:
        """The memory formats in which the pass is compared."""
        return list(LAYOUTS) if len(self.shape) == 4 else ["contiguous"]


def zoo_specs() -> list[str]:
    """Return the spec of every norm of the zoo."""
    return [entry.spec for entry in zoo()]


def make_cases(specs: Sequence[str], dtypes: Sequence[str]) -> list[Case]:
    """Return the passes to compare: all combinations at `SHAPE`, and a training pass of some norms at the other shapes."""
    modes = product((True, False), ACTIVATIONS, (False, True))
    cases = [Case(spec, SHAPE, dtype, *mode) for spec, dtype, mode in product(specs, dtypes, list(modes))]
    further = [spec for spec in specs if spec in FURTHER_SPECS]
    cases += [
        Case(spec, shape, dtype, training=True, activation="relu", residual=True)
        for spec, dtype, shape in product(further, dtypes, (LARGE_SHAPE, VECTORS))
        if len(shape) == 4 or spec != "bgn:512"  # bgn:512 divides the positions of a channel
    ]
    return cases


def make_norm(spec: str, num_features: int, activation: str | None = None) -> Norm:
    """Return a layer, with the nearest numbers of groups that divide the number of channels."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # some norms outside the algebra have random initial parameters
        return make(nearest_spec(parse(spec), num_features), num_features, activation=activation)


def make_layer(spec: str, shape: Sequence[int]) -> Norm:
    """Return a float32 layer on the CPU that has seen a batch, with parameters that differ from their initial values."""
    generator = torch.Generator().manual_seed(1)
    layer = make_norm(spec, shape[1])
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    layer.set_total_steps(4)  # so that norms with a schedule are in the middle of it
    with torch.no_grad(), kernels.use("reference"):
        x = random_input(shape, seed=2)
        layer(2 * x, random_condition(layer, x))
    return layer


def random_input(shape: Sequence[int], seed: int) -> Tensor:
    """Return normally distributed values in float32 whose mean is not 0, with another standard deviation in each channel."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.linspace(0.5, 2, shape[1]).reshape(1, -1, *(1 for _ in shape[2:]))
    return 0.7 + size * torch.randn(tuple(shape), generator=generator)


def random_condition(layer: Norm, x: Tensor) -> Any:
    """Return a condition for a layer: a class or domain per sample, the mean and std of a style, or None."""
    n, c = x.shape[:2]
    if layer.norm_spec.num_classes:
        return torch.arange(n) % layer.norm_spec.num_classes
    if layer.norm_spec.takes_style:
        mean, std = random_input((n, c), seed=3), random_input((n, c), seed=4)
        return mean, std.abs()
    return None
