"""Statistics of the inputs of norms for each cut, pooled exactly over any number of batches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anynorm import kernels
from anynorm.core.cuts import Cut
from anynorm.core.moments import Moments, about_zero, pool_samples, pool_stacked
from anynorm.diagnostics.buffers import StatBuffers
from anynorm.surgery.batches import image_list
from anynorm.surgery.find import NormSite


def pooled_moments(x: Tensor, cuts: Iterable[Cut], labels: Tensor | None = None, num_domains: int = 0) -> dict[Cut, Moments]:
    """Return the moments of x for each cut, pooled over all samples, or over the samples of each domain if labels are given.

    Args:
        x: tensor of shape (n, c, …).
        cuts: cuts of channels and positions; samples are pooled.
        labels: the domain of each sample, (n,).
        num_domains: number of domains; 0 without labels.
    """
    cuts = list(cuts)
    rows = kernels.moments(x, math.lcm(*(cut.space or 1 for cut in cuts)))
    columns = pool_samples(rows, labels, num_domains)
    return {cut: cut.pool_channels(columns) for cut in cuts}


@dataclass
class StatAccumulator:
    """Accumulator of the moments of the inputs of one norm; memory does not grow with the number of batches."""

    site: NormSite
    buffers: StatBuffers
    num_calls: int = 0
    moments: dict[Cut, Moments] = field(default_factory=dict)

    def update(self, x: Tensor, labels: Tensor | None = None) -> None:
        """Pool the moments of an input into the accumulated moments."""
        info = self.site.info
        if info.norm_spec.soft_assignment:  # only the norm itself can compute the weights of the modes
            norm: Any = self.site.module
            batch = {cut: norm.moments_of(x) for cut in info.running_stats}
        else:
            batch = pooled_moments(x, info.running_stats, labels, info.norm_spec.affine.num_domains)
            batch = batch if info.norm_spec.mean else {cut: about_zero(moments) for cut, moments in batch.items()}
        self.num_calls += 1
        for cut, moments in batch.items():
            members = [_expand_count(entry) for entry in (self.moments.get(cut), moments) if entry is not None]
            self.moments[cut] = pool_stacked(Moments(*(torch.stack(tables) for tables in zip(*members, strict=True))))


def _expand_count(moments: Moments) -> Moments:
    return moments._replace(count=moments.count.expand_as(moments.mean).to(moments.mean.dtype))


def iterate_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch or an output, inside any nesting of tuples, lists, dictionaries and dataclasses."""
    if isinstance(value, Tensor):
        yield value
        return
    # not torch.utils._pytree, which treats dataclasses and unregistered subclasses of dict and list as leaves
    entries: Iterable[Any] = ()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        entries = [getattr(value, entry.name) for entry in dataclasses.fields(value)]
    elif isinstance(value, dict):
        entries = value.values()
    elif isinstance(value, tuple | list):
        entries = value
    for entry in entries:
        yield from iterate_tensors(entry)


def num_samples(batch: Any) -> int | None:
    """Return the number of images of a batch, or else the length of its first tensor with a dimension; None without either."""
    images = image_list(batch)
    if images is not None:
        return len(images)
    return next((len(tensor) for tensor in iterate_tensors(batch) if tensor.dim()), None)
