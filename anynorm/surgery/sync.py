"""Statistics over all processes, for every norm of a model that pools over samples: ours, and torch's, which become ours.

`nn.SyncBatchNorm` refuses the CPU and gloo; ours take any backend, and ranks that hold different numbers of samples or none.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from anynorm.layers.distributed import set_sync_group as sync_ours
from anynorm.layers.norm import Norm
from anynorm.surgery.adapters import NormInfo
from anynorm.surgery.find import all_or_nothing, check_model, find_norms
from anynorm.surgery.replace import replacement, share_parameters
from anynorm.surgery.report import Report


def sync(model: nn.Module, group: Any = None, *, on: bool = True) -> Report:
    """Make every norm of a model that pools over samples do so over all processes (or no more), in place.

    Only training is synchronised; inference uses what was kept.

    Args:
        group: the process group; None is the default group.

    >>> import anynorm
    >>> print(anynorm.sync(nn.Sequential(anynorm.make("hn", 8), nn.BatchNorm2d(8), anynorm.make("gn:2", 8))))
    path  was          is
    0     hn           hn
    1     BatchNorm2d  bn
    2 norms are synchronised.
    """
    check_model(model)
    changed = model
    rows: list[dict[str, Any]] = []
    with all_or_nothing() as ledger:
        was: dict[str, str] = {}
        for site in find_norms(model):
            module: nn.Module = site.module
            was[site.path] = site.label
            if on and isinstance(module, _BatchNorm) and isinstance(site.reading, NormInfo):
                module, _, _ = replacement(site, site.reading, site.reading.spec, {})
                share_parameters(site.module, module)
                ledger.put(site, module)
                changed = changed if site.holders else module
            if isinstance(module, Norm):
                ledger.backs.append(lambda norm=module, reach=module.sync_group: setattr(norm, "sync_group", reach))  # type: ignore[misc]
        for path in sync_ours(changed, group, on=on):
            rows.append({"path": path, "was": was[path], "is": str(getattr(changed.get_submodule(path), "spec", ""))})
    verb = "norm is" if len(rows) == 1 else "norms are"
    return Report(rows, f"{len(rows)} {verb} {'' if on else 'no longer '}synchronised.", changed, ledger.undo, model)
