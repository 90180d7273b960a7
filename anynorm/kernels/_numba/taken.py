"""What a pass of the cpu kernels took from x, as the layer asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anynorm.core.moments import Moments, pool_samples
from anynorm.core.update_rules import Stats
from anynorm.kernels._numba import whole
from anynorm.kernels._numba.plan import Plan
from anynorm.kernels.interface import BufferPair, ForwardSpec


class Taken:
    """A `Batch` whose tables are laid out as the reference's when they are asked for; it lasts until the thread's next pass."""

    __slots__ = ("labels", "plan", "rows", "tables", "task")

    def __init__(self, task: ForwardSpec, plan: Plan, labels: Tensor | None, tables: Any, rows: Any) -> None:
        self.task, self.plan, self.labels, self.tables, self.rows = task, plan, labels, tables, rows

    @property
    def samples(self) -> Any:
        """Count the samples, of each domain where there are such."""
        if self.task.num_domains and self.labels is not None:
            return np.bincount(self.labels.numpy(), minlength=self.task.num_domains)
        return self.plan.samples

    def has_single_value(self, index: int) -> bool:
        """Whether a cut took a statistic over a single value."""
        return self.pooled_samples and self.plan.values[index] == 1 and bool((self.samples == 1).any())

    @property
    def pooled_samples(self) -> bool:
        """Whether a cut pooled samples of the batch."""
        return self.plan.looks_at_samples

    def update_in_place(self, stats: Sequence[tuple[int, BufferPair]], num_batches: Tensor | None, rate: float) -> bool:
        """Update the running statistics, s <- (1 - rate) s + rate m; return False if a buffer is not plain float32."""
        buffers = [buffer for _, pair in stats for buffer in pair if buffer is not None]
        for buffer in buffers:
            if buffer.dtype is not torch.float32 or type(buffer) is not Tensor or not buffer.is_cpu or not buffer.is_contiguous():
                return False
        samples = self.samples
        if num_batches is not None:
            num_batches.add_(torch.from_numpy((samples > 0).astype(np.int64)) if self.task.num_domains else 1)
        for index, (mean, var) in stats:
            addresses = (0 if mean is None else mean.data_ptr(), 0 if var is None else var.data_ptr())
            whole.blend(self.tables, *self.plan.ends[index], *addresses, samples, self.plan.values[index], rate)
        torch.autograd.graph.increment_version(buffers)
        return True

    def stats(self, index: int) -> Stats:
        """Return what is to be kept of a cut: means and unbiased variances, (sample parts, c parts, t parts)."""
        moments = self.by_cut[index]
        assert moments is not None  # only asked of cuts that looked
        return Stats(moments.mean, moments.unbiased_var())

    def _cut(self, index: int) -> Any:
        lo, hi = self.plan.ends[index]
        return self.tables[:, lo:hi]

    def _shape(self, index: int) -> tuple[int, int, int]:
        cut, layout = self.task.cuts.distinct[index], self.plan.layout
        return -1, cut.channels or layout.channels, cut.space or layout.strips

    @property
    def by_cut(self) -> list[Moments | None]:
        """Moments of each cut that pools over samples and looked."""
        found: list[Moments | None] = []
        for index, (look, cut) in enumerate(zip(self.task.uses_batch, self.task.cuts.distinct, strict=True)):
            if not (look and cut.pools_samples):
                found.append(None)
                continue
            mean, var = (torch.from_numpy(table).reshape(self._shape(index)) for table in self._cut(index))
            samples = torch.from_numpy(self.samples).double().reshape(-1, 1, 1)
            whole_batch = samples * self.plan.values[index]
            parts = mean.shape[0] if cut.is_ghost else 1  # the samples of one part
            found.append(Moments(mean, var, (whole_batch / parts).expand_as(mean)))
        return found

    @property
    def num_values(self) -> Tensor | None:
        """Positions behind the statistics, of each domain; None where no cut that pools over samples looked."""
        if not self.pooled_samples:
            return None
        layout = self.plan.layout
        positions = layout.samples * layout.length * layout.strips / self.plan.samples[0]  # of one sample
        return torch.from_numpy(self.samples * positions).reshape(-1, 1, 1)

    @property
    def channel_moments(self) -> Moments | None:
        """Moments of each channel and strip over all samples, which only GBGN asks for."""
        layout = self.plan.layout
        shape = (layout.samples, *((layout.strips, layout.channels) if layout.last else (layout.channels, layout.strips)))
        mean, var = (torch.from_numpy(table.reshape(shape)) for table in self.rows)
        mean, var = (mean.transpose(1, 2), var.transpose(1, 2)) if layout.last else (mean, var)
        count = torch.full((1, 1, 1), float(layout.length), dtype=torch.float64, device="cpu")
        return pool_samples(Moments(mean, var, count), None, 0)
