"""Times of training passes, forward and backward, against torch's layers and the bandwidth of the device's memory.

A pass moves at least 8 tensors of the size of x: forward reads x twice and writes y, backward reads x and dy twice and writes dx.
Statistics and parameters are small. An activation adds nothing, since it can be computed with y. So

    GB/s = 8 · bytes of x / time        share = GB/s / (2 · bytes of x / time of dst.copy_(src))

and a share of 1 means that the pass takes no longer than copying as many bytes. It can be larger if tensors fit a cache.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.core.activation import read_activation
from anynorm.selftest.cases import LAYOUTS, make_norm, random_condition, random_input
from anynorm.selftest.devices import Timer

TENSORS_MOVED = 8
"""Number of tensors of the size of x that forward and backward read and write."""
ROUNDS = 7
"""Number of rounds; each calls our layer, torch's layer and the copy once."""


@dataclass(frozen=True)
class TimedCase:
    """A training pass to time: a norm, the dtype and the memory format of x, and the activation."""

    spec: str
    shape: tuple[int, ...]
    dtype: str
    layout: str
    activation: str | None


@dataclass(frozen=True)
class Timing:
    """The times of a training pass, in seconds; medians of rounds.

    Args:
        case: the pass.
        torch_layer: torch's layer, which computes the same as ours or, for a norm that torch does not have, nn.BatchNorm2d.
        seconds, torch_seconds: times of our layer and torch's, each with the activation.
        ratio: our time / torch's time.
        gigabytes_per_second: bytes that the pass moves at least / our time.
        copy_share: `gigabytes_per_second` relative to copying x.
        problem: why the pass could not be timed; "" if it could.
    """

    case: TimedCase
    torch_layer: str
    seconds: float | None = None
    torch_seconds: float | None = None
    ratio: float | None = None
    gigabytes_per_second: float | None = None
    copy_share: float | None = None
    problem: str = ""


class LayerNorm2d(nn.LayerNorm):
    """nn.LayerNorm over the channels of each position."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x, (n, c, h, w)."""
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class RMSNorm2d(nn.RMSNorm):
    """nn.RMSNorm over the channels of each position."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x, (n, c, h, w)."""
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


TORCH_LAYERS: dict[str, tuple[str, Callable[[int], nn.Module]]] = {
    "in": ("nn.InstanceNorm2d", lambda c: nn.InstanceNorm2d(c, affine=True)),
    "ln": ("nn.GroupNorm", lambda c: nn.GroupNorm(1, c)),
    "gn:32": ("nn.GroupNorm", lambda c: nn.GroupNorm(32, c)),
    "pn": ("nn.LayerNorm", LayerNorm2d),
    "rms": ("nn.RMSNorm", RMSNorm2d),
}
"""The layers of torch that compute the same as a norm of the zoo, with their names; nn.BatchNorm2d for all other norms."""


def make_timed_cases(specs: Sequence[str], dtypes: Sequence[str], shape: tuple[int, ...]) -> list[TimedCase]:
    """Return the passes to time: without an activation, and with ReLU."""
    combinations = product(specs, dtypes, LAYOUTS, (None, "relu"))
    return [TimedCase(spec, shape, dtype, layout, activation) for spec, dtype, layout, activation in combinations]


def time_case(case: TimedCase, device: torch.device, rounds: int = ROUNDS) -> Timing:
    """Time a training pass of our layer and of torch's on a device."""
    name, _ = TORCH_LAYERS.get(case.spec, ("nn.BatchNorm2d", None))
    try:
        times = median_times(_calls(case, device), Timer(device), rounds)
    except Exception as error:  # a kernel may raise anything, out of memory included; the other passes are still timed
        return Timing(case, name, problem=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
    dtype: torch.dtype = getattr(torch, case.dtype)
    num_bytes = math.prod(case.shape) * dtype.itemsize
    speed = TENSORS_MOVED * num_bytes / times["ours"]
    copy_speed = 2 * num_bytes / times["copy"]
    return Timing(case, name, times["ours"], times["torch"], times["ours"] / times["torch"], speed / 1e9, speed / copy_speed)


def median_times(calls: Mapping[str, Callable[[], object]], timer: Timer, rounds: int) -> dict[str, float]:
    """Return the median time of each call in seconds; after two calls that are not counted, all are called once per round."""
    for call in calls.values():
        call()
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(timer.seconds(call))
    return {name: statistics.median(values) for name, values in times.items()}


def _calls(case: TimedCase, device: torch.device) -> dict[str, Callable[[], object]]:
    """Return the calls to time: a training pass of our layer and of torch's, and a copy of x."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    c = case.shape[1]
    x, dy = (random_input(case.shape, seed).to(device, dtype, memory_format=LAYOUTS[case.layout]) for seed in (5, 7))
    x.requires_grad_()
    ours = make_norm(case.spec, c, case.activation).to(device)
    condition = _to_device(random_condition(ours, x), device)
    theirs = _torch_layer(case, c).to(device)
    source, target = x.detach(), torch.empty_like(dy)
    return {
        "ours": lambda: _train(ours, x, dy, condition),
        "torch": lambda: _train(theirs, x, dy),
        "copy": lambda: target.copy_(source),
    }


def _torch_layer(case: TimedCase, num_features: int) -> nn.Module:
    """Return torch's layer, followed by the activation."""
    _, make_layer = TORCH_LAYERS.get(case.spec, ("", nn.BatchNorm2d))
    layer = make_layer(num_features)
    if isinstance(layer, nn.GroupNorm | nn.LayerNorm | nn.RMSNorm):
        layer.to(getattr(torch, case.dtype))  # on GPUs, they require parameters in the dtype of x
    activation = read_activation(case.activation)
    return layer if activation is None else nn.Sequential(layer, activation.module())


def _to_device(condition: Any, device: torch.device) -> Any:
    if isinstance(condition, tuple):
        return tuple(each.to(device) for each in condition)
    return None if condition is None else condition.to(device)


def _train(layer: nn.Module, x: Tensor, dy: Tensor, condition: Any = None) -> object:
    """Run forward and backward; return the gradients, which are newly allocated as in a network."""
    y = layer(x) if condition is None else layer(x, condition)
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    return torch.autograd.grad(y, [x, *trained], dy, allow_unused=True)
