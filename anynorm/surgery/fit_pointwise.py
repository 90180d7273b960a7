"""Fit of α and s of a point-wise function (dyt, derf) by a search; γ and β follow in closed form.

With f = tanh(α x) or erf(α x + s) and the target t, the least-squares γ and β of a channel leave the error
n (var t − cov(f, t)² / var f). The search minimizes its sum over the channels:

    1. α on a logarithmic grid, s = 0
    2. steps of log α and s, halved whenever none of them is an improvement

α is in units of 1 / rms(x), between `SMALLEST` and `LARGEST`. The target of a BN in inference is linear in x, and so is f for
small α: the error then decreases with α, and the search ends at its lower limit, where f is nearly linear.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from anynorm.layers.baselines.pointwise import PointwiseNorm

SMALLEST, LARGEST = 2.0**-6, 2.0**4
"""Limits of α rms(x)."""
NUM_VALUES = 2**16
"""Number of values of x that the search uses; each channel has equally many."""
MIN_VALUES = 256
"""Minimum number of values of a channel."""
FIRST_STEP, LAST_STEP = 0.5, 0.01
"""First and last step of log2 α and of s."""
Point = tuple[float, ...]


def fit_pointwise(norm: PointwiseNorm, x: Tensor, target: Tensor) -> str:
    """Set α, and s if the norm has it, to the values with the smallest error for the best γ and β.

    Args:
        norm: the norm, changed in place.
        x: its input, (n, c, …).
        target: the output of the old norm, with the shape of x.

    Returns:
        The values, for the report.
    """
    values, goal = _sample(x, target)
    rms = float(values.square().mean().sqrt())
    if rms == 0:
        return "α not fitted: all inputs are 0"
    goal = goal - goal.mean(0)
    has_shift = "shift" in norm._parameters

    def set_point(point: Point) -> None:
        norm.alpha.fill_(2 ** point[0] / rms)
        if has_shift:
            norm.get_parameter("shift").fill_(point[1])

    def explained(point: Point) -> float:
        """Return the part of the variance of the target that γ and β can explain, negative: the error without a constant."""
        set_point(point)
        f = norm.function(values)
        f = f - f.mean(0)
        variance = f.square().sum(0)
        return -float((torch.linalg.vecdot(f, goal, dim=0).square() / variance.clamp(min=torch.finfo(f.dtype).tiny)).sum())

    low, high = math.log2(SMALLEST), math.log2(LARGEST)
    grid = [(float(exponent), *([0.0] if has_shift else [])) for exponent in range(round(low), round(high) + 1)]
    set_point(_descend(explained, min(grid, key=explained), low, high))
    return f"α = {norm.alpha.item():.3g}" + (f", s = {norm.get_parameter('shift').item():.3g}" if has_shift else "")


def _sample(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return x and the target at the same random samples and positions, (values, c), in float64."""
    n, c = x.shape[:2]
    x, target = x.reshape(n, c, -1), target.reshape(n, c, -1)
    total = n * x.shape[2]
    count = max(MIN_VALUES, NUM_VALUES // c)
    if count < total:
        chosen = torch.randperm(total, generator=torch.Generator().manual_seed(0))[:count].to(x.device)
    else:
        chosen = torch.arange(total, device=x.device)
    samples, positions = chosen // x.shape[2], chosen % x.shape[2]
    return x[samples, :, positions].double(), target[samples, :, positions].double()


def _descend(function: Callable[[Point], float], point: Point, low: float, high: float) -> Point:
    """Return a local minimum of a function, by a compass search; the first coordinate stays between `low` and `high`."""
    best, step = function(point), FIRST_STEP
    while step >= LAST_STEP:
        candidates = [_moved(point, axis, sign * step, low, high) for axis in range(len(point)) for sign in (1, -1)]
        lowest, candidate = min((function(candidate), candidate) for candidate in candidates)
        if lowest < best:
            best, point = lowest, candidate
        else:
            step /= 2
    return point


def _moved(point: Point, axis: int, step: float, low: float, high: float) -> Point:
    moved = [value + step * (k == axis) for k, value in enumerate(point)]
    return (min(max(moved[0], low), high), *moved[1:])
