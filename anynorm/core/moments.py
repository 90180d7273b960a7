"""Means and variances that can be pooled exactly.

A table holds one (mean, var, count) per (sample, channel, strip). The moments of a union follow from those of its members (law of
total variance), whether the members are samples, channels, strips, batches or processes:

    mean = Σ wᵢ meanᵢ        var = Σ wᵢ (varᵢ + (meanᵢ − mean)²)        wᵢ = countᵢ / Σ count

never E[x²] − mean², which loses all digits of a variance that is small beside the squared mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

MIN_COUNT = 1e-9
"""Lower bound of divisors: with soft assignments a sample may count as less than one value."""
MIN_SHARE = 1e-3
"""A domain or mode with fewer values than this in a batch is treated as absent."""


class Moments(NamedTuple):
    """A table (n, c, t) of moments; `var` is biased, `count` is the number of values behind each entry."""

    mean: Tensor
    var: Tensor
    count: Tensor  # type: ignore[assignment]  # hides tuple.count, which is not used

    def unbiased_var(self) -> Tensor:
        """Return the variance with Bessel's correction."""
        return self.var * bessel_correction(self.count)


def bessel_correction(count: Tensor) -> Tensor:
    """Return count / (count − 1), the factor of an unbiased variance; 1 for at most one value."""
    return count.clamp(min=1) / (count - 1).clamp(min=1)


def table_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of small tables: float64, so that a mean of 1e4·std costs no digits.

    Exported graphs and devices without float64 use float32.
    """
    no_float64 = torch.compiler.is_exporting() or x.device.type == "mps"
    return torch.float32 if no_float64 and x.dtype != torch.float64 else torch.float64


def merge_moments(moments: Moments, sum_members: Callable[[Tensor], Tensor], expand: Callable[[Tensor], Tensor]) -> Moments:
    """Return the moments of unions.

    Args:
        moments: the moments of the members.
        sum_members: sums a table over the members of each union.
        expand: returns for each member the entry of its union.
    """
    count = sum_members(moments.count)
    inverse = 1 / count.clamp(min=MIN_COUNT)
    mean = sum_members(moments.count * moments.mean) * inverse
    var = sum_members(moments.count * (moments.var + (moments.mean - expand(mean)).square())) * inverse
    return Moments(mean, var, count)


def pool(moments: Moments, parts: tuple[int, int, int]) -> Moments:
    """Pool a table (n, c, t) into `parts` equal contiguous parts of each axis."""
    sizes = tuple(moments.mean.shape)
    if parts == sizes:
        return moments
    split = [size for part, length in zip(parts, sizes, strict=True) for size in (part, length // part if part else 1)]
    kept_axes = [size for part in parts for size in (part, 1)]

    def sum_members(table: Tensor) -> Tensor:
        return table.reshape(split).sum((1, 3, 5)).reshape(parts)

    def expand(table: Tensor) -> Tensor:
        return table.reshape(kept_axes).expand(split).reshape(sizes)

    return merge_moments(moments._replace(count=moments.count.expand(sizes)), sum_members, expand)


def pool_samples(moments: Moments, labels: Tensor | None = None, num_domains: int = 0) -> Moments:
    """Pool a table (n, c, t) over all samples, or over the samples of each domain: (max(1, num_domains), c, t)."""
    n, c, t = moments.mean.shape
    if labels is None:
        return pool(moments, (1, c, t))
    zeros = moments.mean.new_zeros(num_domains, c, t)

    def sum_members(table: Tensor) -> Tensor:
        return zeros.index_add(0, labels, table)

    def expand(table: Tensor) -> Tensor:
        return table.index_select(0, labels)

    return merge_moments(moments._replace(count=moments.count.expand(n, c, t)), sum_members, expand)


def pool_stacked(moments: Moments) -> Moments:
    """Pool tables stacked along a first axis, such as one table per process."""
    return merge_moments(moments, lambda table: table.sum(0), lambda table: table)


def expand_parts(table: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Return for each (sample, channel, strip) the entry of its part; axes of one part stay 1 and broadcast."""
    for axis, length in enumerate(shape):
        num_parts = table.shape[axis]
        if num_parts not in (1, length):
            table = table.repeat_interleave(length // num_parts, dim=axis)
    return table
