"""Where the rows of x lie in memory, and where the statistics of each cut live in flat tables."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anynorm.core.cut import Cut

LAST = (torch.channels_last, torch.channels_last_3d)


class Layout(NamedTuple):
    """How x is seen by the passes: `samples` rows of `columns` (channel, strip) pairs, each of `length` values.

    Flat: columns run over channels, then strips. Last: over strips, then channels, for channels are contiguous in memory.
    """

    samples: int
    channels: int
    strips: int
    length: int
    last: bool
    format: Any

    @property
    def columns(self) -> int:
        """Columns of the tables."""
        return self.channels * self.strips

    def array(self, x: Tensor) -> Any:
        """See x as the passes want it, without a copy; bfloat16 as uint16."""
        bits = x.detach().view(torch.uint16) if x.dtype == torch.bfloat16 else x.detach()
        if not self.last:
            return bits.numpy().reshape(self.samples * self.columns, self.length)
        return bits.movedim(1, -1).numpy().reshape(self.samples * self.strips, self.length, self.channels)

    def tables(self, *tables: Any) -> tuple[Any, ...]:
        """See tables (samples, columns) as the passes want them."""
        shape = (self.samples * self.strips, self.channels) if self.last else (self.samples * self.columns,)
        return tuple(table.reshape(shape) for table in tables)


def layout_of(x: Tensor, strips: int, apart: bool) -> Layout | None:
    """Find how x lies in memory; None where its rows are not dense.

    Args:
        apart: whether samples must be told apart; where not, and channels are contiguous, positions of all samples are one row.
    """
    n, c, s = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    length = s // strips
    if x.is_contiguous() and s > 1:
        return Layout(n, c, strips, length, last=False, format=torch.contiguous_format)
    if x.dim() > 3:
        kind = LAST[x.dim() - 4] if x.dim() < 6 else torch.contiguous_format
        dense = x.is_contiguous(memory_format=kind)
    else:
        kind, dense = torch.contiguous_format, s == 1 and x.is_contiguous()
    if not dense:
        return None
    if apart or strips > 1:
        return Layout(n, c, strips, length, last=True, format=kind)
    groups = math.gcd(n * s, torch.get_num_threads())
    return Layout(groups, c, 1, n * s // groups, last=True, format=kind)


class Places(NamedTuple):
    """Where each statistic lives; see `Plan` in work."""

    samples: Any
    columns: Any
    offset: Any
    width: Any
    members: Any
    channel: Any


@lru_cache(maxsize=256)
def places(cuts: tuple[Cut, ...], pooled: tuple[bool, ...], layout: Layout) -> Places:
    """Place the statistics of every cut.

    Args:
        pooled: whether all samples share a cut's statistics in this pass, as they do those of a population.
    """
    return places_by_domain(cuts, pooled, layout, np.zeros(layout.samples, np.int64), 1)


def places_by_domain(cuts: tuple[Cut, ...], pooled: tuple[bool, ...], layout: Layout, labels: Any, domains: int) -> Places:
    """Place the statistics of every cut, where each domain pools its own samples."""
    each = np.arange(layout.samples)
    samples = [labels if whole else each // cut.samples_per_part for cut, whole in zip(cuts, pooled, strict=True)]
    order = np.arange(layout.columns)
    c, t = (order % layout.channels, order // layout.channels) if layout.last else (order // layout.strips, order % layout.strips)
    columns, widths, members = [], [], []
    for cut, whole, sample in zip(cuts, pooled, samples, strict=True):
        channels, strips = cut.channels or layout.channels, cut.space or layout.strips
        part = (c * channels // layout.channels) * strips + t * strips // layout.strips
        width = channels * strips
        block = layout.columns // width
        columns.append(np.concatenate([[block if (part == order // block).all() else 0], part]))
        widths.append(width)
        counts = np.bincount(sample, minlength=domains if whole else 0)
        members.append(np.outer(counts, np.bincount(part)).ravel().astype(np.float64))
    offset = np.cumsum([0, *map(len, members)])
    return Places(np.stack(samples), np.stack(columns), offset, np.array(widths), np.concatenate(members), c)
