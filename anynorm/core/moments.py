"""Means and variances that can be pooled exactly.

A table holds one (mean, var, count) for each (sample, channel, strip). The moments of a union follow from those of its
members (law of total variance), whatever the members are: samples, channels, strips, batches or processes:

    mean = Σ wᵢ meanᵢ        var = Σ wᵢ (varᵢ + (meanᵢ − mean)²)        wᵢ = countᵢ / Σ count

never E[x²] − mean², which loses every digit of a variance far from zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

MIN_COUNT = 1e-9
"""What is divided by, at least: shares of a sample may count less than one value."""
MIN_SHARE = 1e-3
"""Fewer values than this say nothing about a domain or mode."""


class Moments(NamedTuple):
    """A table (n, c, t) of moments; `var` is biased, `count` the values behind each entry."""

    mean: Tensor
    var: Tensor
    count: Tensor  # type: ignore[assignment]  # hides tuple.count, which nobody calls

    def unbiased_var(self) -> Tensor:
        """Apply Bessel's correction."""
        return self.var * bessel(self.count)


def bessel(count: Tensor) -> Tensor:
    """Give what makes a variance of so many values unbiased; one value alone, or less, keeps its variance."""
    return count.clamp(min=1) / (count - 1).clamp(min=1)


def table_dtype(x: Tensor) -> torch.dtype:
    """Choose what small tables are kept in: double, so that means of 1e4·std cost no digits.

    Exported graphs and devices without double keep to float32.
    """
    narrow = torch.compiler.is_exporting() or x.device.type == "mps"
    return torch.float32 if narrow and x.dtype != torch.float64 else torch.float64


def union(moments: Moments, total: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Moments:
    """Pool members into unions.

    Args:
        total: sums a table over the members of each union.
        back: gives each member its union's entry.
    """
    count = total(moments.count)
    share = 1 / count.clamp(min=MIN_COUNT)
    mean = total(moments.count * moments.mean) * share
    var = total(moments.count * (moments.var + (moments.mean - back(mean)).square())) * share
    return Moments(mean, var, count)


def pool(moments: Moments, parts: tuple[int, int, int]) -> Moments:
    """Pool a table (n, c, t) into `parts` equal contiguous parts of each axis."""
    sizes = tuple(moments.mean.shape)
    if parts == sizes:
        return moments
    split = [size for part, whole in zip(parts, sizes, strict=True) for size in (part, whole // part if part else 1)]
    kept = [size for part in parts for size in (part, 1)]

    def total(table: Tensor) -> Tensor:
        return table.reshape(split).sum((1, 3, 5)).reshape(parts)

    def back(table: Tensor) -> Tensor:
        return table.reshape(kept).expand(split).reshape(sizes)

    return union(moments._replace(count=moments.count.expand(sizes)), total, back)


def pool_samples(moments: Moments, labels: Tensor | None = None, domains: int = 0) -> Moments:
    """Pool a table (n, c, t) over all samples, or over those of each domain: (max(1, domains), c, t)."""
    n, c, t = moments.mean.shape
    if labels is None:
        return pool(moments, (1, c, t))
    zeros = moments.mean.new_zeros(domains, c, t)

    def total(table: Tensor) -> Tensor:
        return zeros.index_add(0, labels, table)

    def back(table: Tensor) -> Tensor:
        return table.index_select(0, labels)

    return union(moments._replace(count=moments.count.expand(n, c, t)), total, back)


def pool_stacked(moments: Moments) -> Moments:
    """Pool tables stacked along a first axis, as one per process."""
    return union(moments, lambda table: table.sum(0), lambda table: table)


def spread(table: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Give each (sample, channel, strip) its part's entry; axes of one part stay 1 and broadcast."""
    for axis, whole in enumerate(shape):
        part = table.shape[axis]
        if part not in (1, whole):
            table = table.repeat_interleave(whole // part, dim=axis)
    return table
