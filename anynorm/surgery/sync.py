"""Synchronization of batch statistics over all processes, for every norm that pools over samples.

Norms of torch are replaced by anynorm layers. `nn.SyncBatchNorm` supports neither the CPU nor gloo; anynorm layers support any
backend, and ranks with unequal numbers of samples or with none.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from anynorm.errors import SurgeryError
from anynorm.kernels.sync import AllReduce, NoSync
from anynorm.layers.norm import Norm
from anynorm.surgery.find import check_model, find_norms
from anynorm.surgery.new_norm import make_equivalent, share_parameters
from anynorm.surgery.report import SurgeryReport
from anynorm.surgery.undo import all_or_nothing


def sync(model: nn.Module, group: Any = None, *, on: bool = True) -> SurgeryReport:
    """Synchronize the statistics of every norm that pools over samples, in place.

    Only train mode is synchronized; eval mode uses running statistics.

    Args:
        model: the model. Its BatchNorms are replaced by anynorm layers with the same parameters.
        group: the process group; None for the default group.
        on: whether to turn synchronization on or off.

    Returns:
        A report with one row per synchronized norm.

    Raises:
        SurgeryError: if this process is not in the group. The model is unchanged.

    >>> import anynorm
    >>> print(anynorm.sync(nn.Sequential(anynorm.make("hn", 8), nn.BatchNorm2d(8), anynorm.make("gn:2", 8))))
    path  norm         new_norm
    0     hn           hn
    1     BatchNorm2d  bn
    2 norms are synchronized.
    """
    check_model(model)
    if on and group is not None and dist.get_rank(group) < 0:
        raise SurgeryError("This process is not in the group passed to sync; pass a group that contains this rank.")
    sync_group = AllReduce(group) if on else NoSync()
    changed = model
    rows: list[dict[str, Any]] = []
    with all_or_nothing() as undo_log:
        for site in find_norms(model):
            norm = site.module
            if on and isinstance(norm, _BatchNorm) and not site.unsupported:
                norm = make_equivalent(site)
                share_parameters(site.module, norm)
                undo_log.replace(site, norm)
                changed = changed if site.parents else norm
            if isinstance(norm, Norm) and norm.pools_samples:
                undo_log.set_attribute(norm, "sync_group", sync_group)
                rows.append({"path": site.path, "norm": site.label, "new_norm": norm.spec})
    verb = "norm is" if len(rows) == 1 else "norms are"
    return SurgeryReport(rows, f"{len(rows)} {verb} {'' if on else 'no longer '}synchronized.", changed, undo_log.undo, model)
