"""Batch statistics in an evaluation, for networks whose running statistics do not fit them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from anynorm.diagnostics.buffers import preserve_buffers
from anynorm.layers.norm import NO_SYNC, Norm
from anynorm.surgery.find import find_norms


@contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """Normalize by the statistics of each batch inside a `with` block; running statistics and modes stay as they are.

    Processes do not exchange statistics, because they may have different numbers of batches.
    """
    norms = [site.module for site in find_norms(model)]
    modes = {norm: norm.training for norm in norms}
    groups = {norm: norm.sync_group for norm in norms if isinstance(norm, Norm)}
    try:
        for norm in norms:
            norm.train()
        for norm in groups:
            norm.sync_group = NO_SYNC
        with preserve_buffers(model):
            yield
    finally:
        for norm, mode in modes.items():
            norm.train(mode)
        for norm, group in groups.items():
            norm.sync_group = group
