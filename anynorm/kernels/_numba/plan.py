"""A pass laid out for the kernels: how x lies in memory, which samples are of one kind, and where every statistic lives.

A plan depends on the task and on the shape, strides and dtype of x alone, so it is made once and kept with the task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anynorm.core.cuts import ALL
from anynorm.core.mixing import Argmax, Precomputed, Softmax
from anynorm.kernels.interface import ForwardSpec, UnsupportedError

WEIGHINGS = (Softmax, Argmax, Precomputed)  # whose places `tables.SOFT`, `HARD` and `READY` are
MOST_SAVED = 0.05  # of the bytes of x; taking the statistics again costs a third of a pass where x lies in a cache
LAST = (torch.channels_last, torch.channels_last_3d)


class Layout(NamedTuple):
    """How x is seen by the passes: `samples` of `columns` (channel, strip) pairs, each of `length` values.

    Flat: columns run over channels, then strips. Last: over strips, then channels, for channels are contiguous in memory.
    """

    samples: int
    channels: int
    strips: int
    length: int
    last: bool

    @property
    def columns(self) -> int:
        """Columns of the tables."""
        return self.channels * self.strips


class Places(NamedTuple):
    """Where each statistic lives: cut i has its parts at offset[i], `width[i]` of columns for each sample part."""

    where: Any  # (cuts, kinds): the sample part of each kind
    columns: Any  # (cuts, 1 + columns): the size of contiguous column parts or 0, then the column part of each column
    offset: Any  # (cuts + 1,)
    width: Any  # (cuts,)
    looks: Any  # (cuts,): 1 where a cut looks at the batch
    mean: Any  # the cuts of the mean
    var: Any  # the cuts of the variance


@dataclass(frozen=True, eq=False)
class Plan:
    """A pass laid out.

    Args:
        shape: what the pass is, in the places that `whole` names.
        channel_of: the channel of each column, as a row of `Places.columns`.
        kind: of each sample, and its address; 0 where it is the sample's label.
        label: the row of the own affine for each kind, and its address; 0 where it is the sample's label.
        where_by_label: cuts whose sample parts are the labels that come with the pass.
        ends: where the statistics of each cut begin and end.
        looks_at_samples: whether a cut that pools over samples looks at the batch.
        parts: how many statistics there are, and `kept` how many of them a population has.
        rows: how many rows there are, where moments of them are taken.
        scratch: how many numbers a pass works on.
        anew: whether there are so many statistics that backward takes them again, instead of keeping them beside x.
        values: how many values of one sample are behind each statistic of a cut.
        samples: how many samples x has, as an array.
        width: bytes a value.
    """

    layout: Layout
    places: tuple[Any, ...]  # Places, as a plain tuple
    shape: Any
    channel_of: Any
    kind: Any
    kind_at: int
    label: Any
    label_at: int
    where_by_label: list[int]
    ends: list[tuple[int, int]]
    looks_at_samples: bool
    parts: int
    kept: int
    none_kept: Any
    rows: int
    scratch: int
    anew: bool
    values: list[float]
    samples: Any
    width: int

    def take(self, scratch: Any, *, backward: bool) -> tuple[Any, Any, Any]:
        """Return tables for row moments and for statistics, which are kept or taken anew, and the rest to work on."""
        rows, parts = 0 if backward else 2 * self.rows, 2 * self.parts if self.anew else 0
        statistics = scratch[rows : rows + parts] if self.anew else np.empty(0 if backward else 2 * self.parts)
        moments = scratch[:rows].reshape(2, -1, self.layout.columns)
        return moments, statistics.reshape(2, -1), scratch[rows + parts :]


def check_supported(task: ForwardSpec, x: Tensor) -> None:
    """Raise UnsupportedError if the kernels do not support this pass with such an x."""
    if task.sync_group.is_synchronized:
        raise UnsupportedError("the pass is synchronized")
    if any(cut.space == ALL for cut in task.cuts.distinct):
        raise UnsupportedError("a cut keeps every position separate")
    if not x.numel() or _lie(x) is None:
        raise UnsupportedError("the input is empty or its rows are not dense")
    if _lie(x) and task.num_strips(x) > 1 and task.norm_spec.mixing.groups > 1:
        raise UnsupportedError("channel groups mix strips in channels_last memory format")


def _lie(x: Tensor) -> bool | None:
    """Whether channels are contiguous, or rows; None where neither is dense."""
    if x.is_contiguous():
        return math.prod(x.shape[2:]) == 1
    dense = x.dim() in (4, 5) and x.is_contiguous(memory_format=LAST[x.dim() - 4])
    return True if dense else None


def make_plan(task: ForwardSpec, x: Tensor) -> Plan:
    """Lay a pass out that `check_supported` accepts."""
    cuts, looks, mixing, classes = task.cuts.distinct, task.uses_batch, task.norm_spec.mixing, task.norm_spec.num_classes
    each = [look and cut.samples == ALL for look, cut in zip(looks, cuts, strict=True)]
    apart = any(each) or task.norm_spec.takes_style or 0 < x.shape[0] <= classes
    layout = _layout(task, x, merge=not apart and not classes)
    kind, label = _kinds(layout.samples, classes, apart, task.norm_spec.takes_style)
    kinds = layout.samples if apart else max(classes, 1)
    places = _places(task, layout, kinds, each)
    parts = [int(part) for part in np.diff(places.offset)]
    rows = layout.samples * layout.columns
    anew = any(each) and 2 * 8 * sum(parts) > MOST_SAVED * x.numel() * x.element_size()
    own_rows = layout.samples if task.norm_spec.takes_style else classes if task.has_class_affine else 0
    shape = [layout.samples, layout.strips, layout.channels, layout.length, kinds, apart, own_rows, mixing.groups]
    shape += [WEIGHINGS.index(type(mixing)), any(looks), anew]
    return Plan(
        layout,
        tuple(places),
        np.array(shape, np.int64),
        channel_of=_described(_channels(layout)[0]),
        kind=kind,
        kind_at=0 if kind is None else kind.ctypes.data,
        label=label,
        label_at=0 if label is None else label.ctypes.data,
        where_by_label=[i for i, own in enumerate(each) if not own] if task.num_domains and apart else [],
        ends=list(pairwise(map(int, places.offset))),
        looks_at_samples=any([look and cut.pools_samples for look, cut in zip(looks, cuts, strict=True)]),
        parts=sum(parts),
        kept=sum([size for look, size in zip(looks, parts, strict=True) if not look]),
        none_kept=np.empty((2, 0)),
        rows=rows if any(looks) else 0,
        scratch=4 * rows + 5 * sum(parts) + (4 * kinds + 2 * own_rows + 16) * layout.columns + 8 * mixing.groups * len(cuts),
        anew=anew,
        values=[x.numel() / x.shape[0] / channels for channels in map(int, places.width)],
        samples=np.array([x.shape[0]]),
        width=x.element_size(),
    )


def _layout(task: ForwardSpec, x: Tensor, *, merge: bool) -> Layout:
    """See x as the passes do; where samples need not be told apart and channels are last, positions of all are one row."""
    n, c, s = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    strips, last = task.num_strips(x), bool(_lie(x))
    if last and merge and strips == 1:
        groups = math.gcd(n * s, torch.get_num_threads())
        return Layout(groups, c, 1, n * s // groups, last)
    return Layout(n, c, strips, s // strips, last)


def _kinds(samples: int, classes: int, apart: bool, style: bool) -> tuple[Any, Any]:
    """Return the kind of each sample and the label of each kind; None where that is the sample's own label."""
    each, alike = np.arange(samples), np.zeros(samples, np.int64)
    if apart:
        return each, (None if classes else each if style else alike)
    return (None, np.arange(classes)) if classes else (alike, np.zeros(1, np.int64))


def _channels(layout: Layout) -> tuple[Any, Any]:
    """Return the channel and the strip of each column."""
    order = np.arange(layout.columns)
    strips_last = (order // layout.strips, order % layout.strips)
    return (order % layout.channels, order // layout.channels) if layout.last else strips_last


def _places(task: ForwardSpec, layout: Layout, kinds: int, each: list[bool]) -> Places:
    """Place the statistics of every cut.

    Args:
        each: whether a cut looks at samples, or at ghost batches, on their own.
    """
    c, t = _channels(layout)
    order, alike = np.arange(kinds), np.zeros(kinds, np.int64)
    where, columns, width, parts = [], [], [], []
    for cut, own in zip(task.cuts.distinct, each, strict=True):
        channels, strips = cut.channels or layout.channels, cut.space or layout.strips
        where.append(order // cut.samples_per_part if own else order if task.num_domains and kinds == task.num_domains else alike)
        columns.append(_described((c * channels // layout.channels) * strips + t * strips // layout.strips))
        width.append(channels * strips)
        parts.append((layout.samples // cut.samples_per_part if own else task.num_domains or 1) * channels * strips)
    sides = (np.array(task.cuts.mean), np.array(task.cuts.var))
    return Places(
        np.stack(where), np.stack(columns), np.cumsum([0, *parts]), np.array(width), np.array(task.uses_batch, np.int64), *sides
    )


def _described(part: Any) -> Any:
    """Write the size of contiguous equal parts before a row of parts; 0 where they are not such."""
    block = len(part) // (part.max() + 1)
    return np.concatenate([[block if (part == np.arange(len(part)) // block).all() else 0], part])
