"""How population statistics are kept.

Training sees a batch; inference must not. Each policy answers: after a batch with moments m_t, what is kept, and which
moments does `forward` use?

    Running     s <- (1 - rate) s + rate m_t        m_t to train, s to infer
    Cumulative  s <- mean of all m_t seen           m_t to train, s to infer   (sn sec. 2.1: "batch average")
    Pooled      s <- moments of all values seen     m_t to train, s to infer   (batch average, exact for unequal batches)
    Frozen      s                                   s always

The kept variance is unbiased, as torch keeps it. Policies are values without state: the layer owns the buffers, so one
can be put in another's place at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from anynorm.core.moments import MIN_COUNT, Moments, bessel, pool_stacked


class Stats(NamedTuple):
    """Statistics of one cut, fit to be kept: tables (domains or 1, c parts, t parts)."""

    mean: Tensor
    unbiased_var: Tensor


class Observed(NamedTuple):
    """What one batch shows of one cut, for each domain.

    `average` is the mean over the cut's sample parts (one, but for GBGN), `whole` the moments of all values together;
    `batches` and `values` count what was seen with this batch in it, `new_values` this batch alone, both in positions
    of a single channel.
    """

    average: Stats
    whole: Moments
    batches: Tensor
    values: Tensor
    new_values: Tensor


def as_tables(buffers: tuple[Tensor | None, Tensor | None], shape: tuple[int, int, int], dtype: torch.dtype) -> Stats:
    """Copy what a layer keeps of a cut into tables; a side that is not kept reads 0."""
    there = next(buffer for buffer in buffers if buffer is not None)
    mean, var = (torch.zeros_like(there) if buffer is None else buffer for buffer in buffers)
    return Stats(mean.to(dtype, copy=True).reshape(shape), var.to(dtype, copy=True).reshape(shape))


def _blend(kept: Stats, average: Stats, rate: Tensor | float) -> Stats:
    return Stats(*((1 - rate) * old + rate * new for old, new in zip(kept, average, strict=True)))


@dataclass(frozen=True)
class Running:
    """Keeps an exponential average; `rate`, torch's momentum, is the weight of the newest batch."""

    rate: float = 0.1
    learns = True
    pools = False

    def newest(self, batches: Tensor | None) -> Tensor | float:
        """Weight of the newest of so many batches."""
        return self.rate

    def step(self, kept: Stats, seen: Observed) -> Stats:
        """Blend a batch into what is kept."""
        return _blend(kept, seen.average, self.newest(seen.batches))


@dataclass(frozen=True)
class Cumulative:
    """Keeps the plain mean of the batches' means and variances (torch's `momentum=None`)."""

    learns = True
    pools = False

    def newest(self, batches: Tensor | None) -> Tensor | float:
        """Weight of the newest of so many batches: that of any other."""
        return 1.0 if batches is None else 1 / batches.clamp(min=1)

    def step(self, kept: Stats, seen: Observed) -> Stats:
        """Blend a batch with the weight of one among those seen."""
        return _blend(kept, seen.average, self.newest(seen.batches))


@dataclass(frozen=True)
class Pooled:
    """Keeps the moments of all values seen: the union of the batches, whatever their sizes."""

    learns = True
    pools = True

    def step(self, kept: Stats, seen: Observed) -> Stats:
        """Unite a batch with what is kept."""
        new = seen.whole
        old_count = new.count * (seen.values - seen.new_values) / seen.new_values.clamp(min=MIN_COUNT)
        old_var = kept.unbiased_var / bessel(old_count)
        pairs = zip((kept.mean, old_var, old_count), new, strict=True)
        together = pool_stacked(Moments(*(torch.stack(pair) for pair in pairs)))
        return Stats(together.mean, together.unbiased_var())


@dataclass(frozen=True)
class Frozen:
    """Keeps what is there, and normalises by it in training too."""

    learns = False
    pools = False

    def step(self, kept: Stats, seen: Observed) -> Stats:
        """Leave what is kept."""
        return kept


UpdateRule = Running | Cumulative | Pooled | Frozen
