"""The statistics of what reaches a norm, by cut, pooled exactly over any number of batches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anynorm import kernels
from anynorm.core.cut import Cut
from anynorm.core.moments import Moments, pool_members, pool_samples
from anynorm.errors import DiagnosticError
from anynorm.surgery.batches import size_of
from anynorm.surgery.walk import Site


def pooled_moments(x: Tensor, cuts: Iterable[Cut], labels: Tensor | None = None, domains: int = 0) -> dict[Cut, Moments]:
    """Give the moments of x by each of some cuts, all samples pooled, or those of each domain."""
    wanted = list(cuts)
    rows = kernels.moments(x, math.lcm(*(cut.space or 1 for cut in wanted)))
    columns = pool_samples(rows, labels, domains)
    return {cut: cut.pool_columns(columns) for cut in wanted}


@dataclass
class Tally:
    """What has reached one norm so far: memory does not grow with the batches."""

    site: Site
    calls: int = 0
    by_cut: dict[Cut, Moments] = field(default_factory=dict)

    def update(self, new: dict[Cut, Moments]) -> None:
        """Unite a batch with what was seen."""
        self.calls += 1
        for cut, moments in new.items():
            old = self.by_cut.get(cut)
            pair = [moments] if old is None else [old, moments]
            tables = zip(*(_whole(table) for table in pair), strict=True)
            self.by_cut[cut] = pool_members(Moments(*(torch.stack(table) for table in tables)))


def _whole(moments: Moments) -> Moments:
    return moments._replace(count=moments.count.expand_as(moments.mean).to(moments.mean.dtype))


def usable_size(batch: Any) -> int:
    """Count the samples of a batch, or say that it is none."""
    try:
        return size_of(batch)
    except (StopIteration, RuntimeError, TypeError, AttributeError):
        raise DiagnosticError(
            f"The loader gave a {type(batch).__name__}, which holds no tensor. Batches are tensors, tuples whose first entry "
            "is x, or dictionaries; forward= calls the model with anything else."
        ) from None
