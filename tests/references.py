"""Naive float64 implementations of norms: the mean and variance of each set of pixels that share a statistic.

This module imports nothing from anynorm. A cut assigns each pixel (n, c, s) to a set, see `set_of`. Inputs have the shape
(N, C, S): samples, channels, space.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor


def set_of(cut: str, n: int, c: int, s: int, sizes: tuple[int, int, int]):
    """Return the key of the set of pixels that share a statistic with pixel (n, c, s).

    The key is (sample part, rest); the sample part is None if the set has pixels of all samples. `sizes` is (N, C, S).
    """
    _, C, S = sizes
    name, _, numbers = cut.partition(":")
    k = [int(number) for number in numbers.split(",")] if numbers else [1]
    return {
        "bn": lambda: (None, c),
        "in": lambda: (n, c),
        "ln": lambda: (n, 0),
        "gn": lambda: (n, c // (C // k[0])),
        "en": lambda: (None, c // (C // k[0])),
        "bgn": lambda: (None, (c * S + s) // (C * S // k[0])),
        "joint": lambda: (n, (c * S + s) // (C * S // k[0])),
        "gbgn": lambda: (n // k[0], c // (C // k[1])),
        "pn": lambda: (n, s),
    }[name]()


def statistics(
    x: Tensor, cut: str, domain: list[int] | None = None, *, zero_mean: bool = False, valid: Tensor | None = None
) -> tuple[Tensor, Tensor, dict[Any, Any]]:
    """Return the mean and biased variance at every pixel of x, (N, C, S), and the statistics of each set.

    With a mask `valid` (N, S), pixels at other positions belong to no set; their mean and variance are 0.

    The statistics are {(domain, part): [(mean, unbiased var, count), …]}, with one entry of the list per sample part. With a zero
    mean, the variance is the mean of the squares; as no mean is estimated, it is unbiased as it is.
    """
    sizes = (x.shape[0], x.shape[1], x.shape[2])
    members: dict[Any, Any] = {}
    for n, c, s in itertools.product(*map(range, sizes)):
        if valid is not None and not valid[n, s]:
            continue
        key = (domain[n] if domain and set_of(cut, n, c, s, sizes)[0] is None else 0, *set_of(cut, n, c, s, sizes))
        members.setdefault(key, []).append((n, c, s))
    mean, var = torch.zeros_like(x), torch.zeros_like(x)
    kept: dict[Any, Any] = {}
    for (d, _, part), pixels in members.items():
        index = tuple(torch.tensor(axis) for axis in zip(*pixels, strict=True))
        values = x[index]
        m = torch.zeros_like(values[0]) if zero_mean else values.sum() / len(pixels)
        v = ((values - m) ** 2).sum() / len(pixels)
        mean = mean.index_put(index, m.expand(len(pixels)))
        var = var.index_put(index, v.expand(len(pixels)))
        unbiased = v.detach() * (1 if zero_mean else len(pixels) / max(len(pixels) - 1, 1))
        kept.setdefault((d, part), []).append((m.detach(), unbiased, len(pixels)))
    return mean, var, kept


def kept_average(
    x: Tensor,
    cut: str,
    domain: list[int] | None = None,
    domains: int = 1,
    *,
    zero_mean: bool = False,
    valid: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the mean and unbiased variance of a batch for the update of running statistics, averaged over sample parts.

    Both have the shape (domains, parts); they are NaN for domains that are not in the batch.
    """
    _, _, kept = statistics(x, cut, domain, zero_mean=zero_mean, valid=valid)
    parts = sorted({part for _, part in kept})
    table = torch.full((domains, len(parts), 2), float("nan"), dtype=torch.float64)
    for (d, part), found in kept.items():
        for k in range(2):
            table[d, parts.index(part), k] = sum(float(f[k]) for f in found) / len(found)
    return table[..., 0], table[..., 1]


def weighted(tables: list[Tensor], weights: Tensor | None) -> Tensor:
    """Return Σ wₖ tₖ over tables (N, C, S), with weights (k,) or, per group of channels, (groups, k); 0 without tables."""
    if weights is None:
        return tables[0] if tables else torch.zeros((), dtype=torch.float64)
    C = tables[0].shape[1]
    rows = weights if weights.dim() == 2 else weights[None]
    per_channel = torch.stack([rows[c // (C // len(rows))] for c in range(C)])
    return sum(per_channel[None, :, None, k] * table for k, table in enumerate(tables))  # type: ignore[return-value]


def normalize(x: Tensor, mean: Tensor, var: Tensor, affine: list[tuple[Tensor, Tensor]], eps: float = 1e-5) -> Tensor:
    """Return h = (x − mean) / sqrt(var + ε), then γ h + β for each pair of `affine`; all tensors broadcast to (N, C, S)."""
    h = (x - mean) / (var + eps) ** 0.5
    for gamma, beta in affine:
        h = gamma * h + beta
    return h


def running(old: Tensor, new: Tensor, momentum: float) -> Tensor:
    """Return torch's running average; entries for which `new` is NaN keep their old value."""
    return torch.where(new.isnan(), old, (1 - momentum) * old + momentum * new)
