"""Exact pooling of means and variances.

Moments have one mean, variance and count per (sample, channel, strip). The moments of a union of samples, channels, strips,
batches or processes follow from the moments of its members i by the law of total variance:

    mean = Σ wᵢ meanᵢ        var = Σ wᵢ (varᵢ + (meanᵢ − mean)²)        wᵢ = countᵢ / Σ count

The formula E[x²] − mean² is not used: it loses all digits of a variance that is small compared to the squared mean.

A norm whose mean is 0 instead of an estimate uses moments about zero: mean 0, and as variance the second moment E[x²]. The same
law pools them, and since var + mean² has positive terms only, they follow from other moments without loss (`about_zero`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from anynorm.core.compat import is_exporting

MIN_COUNT = 1e-9
"""Lower bound of counts in divisions; with soft assignments, a count may be less than 1."""
MIN_PRESENT_COUNT = 1e-3
"""Minimum count of a domain or mode in a batch; with a smaller count, it is treated as absent."""


class Moments(NamedTuple):
    """Means, biased variances and numbers of values, each a tensor of shape (n, c, strips) or that broadcasts to it."""

    mean: Tensor
    var: Tensor
    count: Tensor  # type: ignore[assignment]  # hides tuple.count, which is not used

    def unbiased_var(self, correction: int = 1) -> Tensor:
        """Return the variance with Bessel's correction."""
        return self.var * bessel_correction(self.count, correction)


def bessel_correction(count: Tensor, correction: int = 1) -> Tensor:
    """Return the factor between biased and unbiased variance, count / (count − correction); 1 if the count is at most 1.

    Args:
        count: number of values.
        correction: as in `torch.var`: 1 if the mean is estimated from the same values, 0 if it is known (`about_zero`).
    """
    return count.clamp(min=1) / (count - correction).clamp(min=1)


def about_zero(moments: Moments) -> Moments:
    """Return the moments about zero: mean 0 and var E[x²] = var + mean².

    >>> about_zero(Moments(*torch.tensor([3.0, 1.0, 8.0])))
    Moments(mean=tensor(0.), var=tensor(10.), count=tensor(8.))
    """
    return Moments(torch.zeros_like(moments.mean), moments.var + moments.mean.square(), moments.count)


def table_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of tables of statistics: float64, so that no digits are lost if the mean is 1e4 times the deviation.

    It is float32 in exported graphs and on devices without float64, unless x has dtype float64.
    """
    no_float64 = is_exporting() or x.device.type == "mps"
    return torch.float32 if no_float64 and x.dtype != torch.float64 else torch.float64


def merge_moments(moments: Moments, sum_members: Callable[[Tensor], Tensor], expand: Callable[[Tensor], Tensor]) -> Moments:
    """Return the moments of unions from the moments of their members.

    Args:
        moments: the moments of the members.
        sum_members: a function that sums a table over the members of each union.
        expand: a function that expands a table with one entry per union to one entry per member.
    """
    count = sum_members(moments.count)
    inverse = 1 / count.clamp(min=MIN_COUNT)
    mean = sum_members(moments.count * moments.mean) * inverse
    var = sum_members(moments.count * (moments.var + (moments.mean - expand(mean)).square())) * inverse
    return Moments(mean, var, count)


def pool(moments: Moments, parts: tuple[int, int, int]) -> Moments:
    """Pool moments (n, c, strips) into `parts` equal contiguous parts of each axis."""
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
    """Pool moments (n, c, strips) over all samples, or over the samples of each domain.

    Args:
        moments: the moments.
        labels: the domain of each sample, (n,); None to pool all samples.
        num_domains: number of domains.

    Returns:
        Moments (1 or num_domains, c, strips).
    """
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
    """Pool moments over a first axis, along which those of several processes or batches are stacked."""
    return merge_moments(moments, lambda table: table.sum(0), lambda table: table)


def expand_parts(table: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Repeat the entries of a table, one per part, to the shape (n, c, strips); axes with one part keep size 1 and broadcast."""
    for axis, length in enumerate(shape):
        num_parts = table.shape[axis]
        if num_parts not in (1, length):
            table = table.repeat_interleave(length // num_parts, dim=axis)
    return table
