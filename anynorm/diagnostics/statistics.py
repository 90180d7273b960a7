"""The statistics of what reaches a norm, by cut, pooled exactly over any number of batches."""

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
from anynorm.core.moments import Moments, pool_samples, pool_stacked
from anynorm.diagnostics.buffers import Slots
from anynorm.surgery.find import NormSite


def pooled_moments(x: Tensor, cuts: Iterable[Cut], labels: Tensor | None = None, domains: int = 0) -> dict[Cut, Moments]:
    """Give the moments of x by each of some cuts, all samples pooled, or those of each domain."""
    wanted = list(cuts)
    rows = kernels.moments(x, math.lcm(*(cut.space or 1 for cut in wanted)))
    columns = pool_samples(rows, labels, domains)
    return {cut: cut.pool_columns(columns) for cut in wanted}


@dataclass
class Tally:
    """What has reached one norm so far: memory does not grow with the batches."""

    site: NormSite
    slots: Slots
    calls: int = 0
    by_cut: dict[Cut, Moments] = field(default_factory=dict)

    def update(self, new: dict[Cut, Moments]) -> None:
        """Unite a batch with what was seen."""
        self.calls += 1
        for cut, moments in new.items():
            old = self.by_cut.get(cut)
            pair = [moments] if old is None else [old, moments]
            tables = zip(*(_whole(table) for table in pair), strict=True)
            self.by_cut[cut] = pool_stacked(Moments(*(torch.stack(table) for table in tables)))


def _whole(moments: Moments) -> Moments:
    return moments._replace(count=moments.count.expand_as(moments.mean).to(moments.mean.dtype))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Give the tensors of a batch or an output, whatever holds them: tuples, lists, dictionaries, dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for entry in dataclasses.fields(value):
            yield from tensors_in(getattr(value, entry.name))
    elif isinstance(value, dict):
        for entry in value.values():
            yield from tensors_in(entry)
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from tensors_in(entry)


def samples_of(batch: Any) -> int | None:
    """Count the samples of a batch by its first tensor that has any axis; None where there is none."""
    return next((len(tensor) for tensor in tensors_in(batch) if tensor.dim()), None)
