"""Statistics of every population-keeping norm, ours and torch's, estimated again with the parameters as they are.

    pooled      the moments of all values seen, exact for unequal batches
    averaged    the mean of the batches' statistics, each batch alike     (sn: "batch average")

Norms look at the batch while everything else infers: dropout is off. Samples are pooled over all processes where a process group
is there. Frozen norms are left as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from anynorm.core.update_rules import Cumulative, Frozen, Pooled
from anynorm.errors import SurgeryError
from anynorm.layers.distributed import AllReduce
from anynorm.layers.norm import Norm
from anynorm.progress import track
from anynorm.surgery.adapters import NormInfo
from anynorm.surgery.batches import Forward, call, size_of
from anynorm.surgery.find import NormSite, UndoLog, all_or_nothing, check_model, find_norms
from anynorm.surgery.replace import replacement
from anynorm.surgery.report import Report

ESTIMATORS = {"pooled": Pooled, "averaged": Cumulative}


def recalibrate(
    model: nn.Module,
    loader: Iterable[Any],
    batches: int | None = None,
    *,
    estimator: str = "pooled",
    forward: Forward | None = None,
) -> Report:
    """Estimate the kept statistics of a model again, in place.

    Args:
        loader: batches: tensors, tuples whose first entry is x, or dictionaries.
        batches: how many of them; None takes all, and a loader that ends before is an error.
        estimator: `pooled` or `averaged`.
        forward: calls the model with a batch, where it needs more than its first entry.
    """
    check_model(model)
    if estimator not in ESTIMATORS:
        raise SurgeryError(f"estimator={estimator!r} is none of {' '.join(ESTIMATORS)}.")
    sites = [site for site in find_norms(model) if _learns(site.reading)]
    if not sites:
        raise SurgeryError(f"This {type(model).__name__} has no norm that learns statistics: there is nothing to recalibrate.")
    with all_or_nothing() as ledger:
        before = {site: _remember(site, ledger) for site in sites}
        seen, reached = _estimate(model, sites, loader, batches, ESTIMATORS[estimator](), forward)
    rows: list[dict[str, Any]] = [{"path": site.path, **_moved(before[site])} for site in sites if site in reached]
    worst = max(rows, key=lambda row: max(row["mean_moved"], row["deviation_moved"]))
    words = f"{len(rows)} of {len(sites)} norms recalibrated on {seen} samples ({estimator}); "
    words += f"moved most: {worst['path'] or 'the model itself'}."
    rows += [{"path": site.path, "note": "no sample reached it: left as it was"} for site in sites if site not in reached]
    return Report(rows, words, model, ledger.undo)


def _learns(reading: NormInfo | str) -> bool:
    return isinstance(reading, NormInfo) and bool(reading.running_stats) and not isinstance(reading.update_rule, Frozen)


def _buffers(site: NormSite) -> list[Tensor]:
    """Give the tensors a site's norm keeps: a mean and a variance of each cut, and the tallies."""
    kept = [tensor for pair in site.info.running_stats.values() for tensor in pair if tensor is not None]
    tallies = [getattr(site.module, name, None) for name in ("num_batches_tracked", "num_values_tracked")]
    return [*kept, *(tally for tally in tallies if tally is not None)]


def _remember(site: NormSite, ledger: UndoLog) -> list[tuple[Tensor, Tensor]]:
    pairs = [(buffer, buffer.clone()) for buffer in _buffers(site)]
    for buffer, old in pairs:
        ledger.backs.append(lambda buffer=buffer, old=old: buffer.copy_(old))  # type: ignore[misc]
    return pairs


def _moved(pairs: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Say how far statistics went: means in old deviations, and deviations by their ratio."""
    (mean, old_mean), (var, old_var) = pairs[0], pairs[min(1, len(pairs) - 1)]
    deviation = old_var.double().clamp(min=1e-12).sqrt()
    if mean.shape != var.shape:
        deviation = deviation.mean()
    moved = ((mean.double() - old_mean.double()) / deviation).abs().mean()
    ratio = (var.double().clamp(min=1e-12) / old_var.double().clamp(min=1e-12)).sqrt()
    return {"mean_moved": float(moved), "deviation_moved": float((ratio - 1).abs().mean())}


def _estimate(
    model: nn.Module, sites: list[NormSite], loader: Any, batches: int | None, policy: Any, forward: Any
) -> tuple[int, list[NormSite]]:
    """Run the loader with norms that look at the batch, and write what they saw into those of the model."""
    modes = {module: module.training for module in model.modules()}
    root = next((site for site in sites if not site.holders), None)
    seen = count = 0
    reached: list[NormSite] = []
    try:
        with all_or_nothing() as ledger, torch.no_grad():
            watchers = {site: _watcher(site, policy) for site in sites}
            model.eval()
            for site, watcher in watchers.items():
                ledger.put(site, watcher)
                watcher.eval()
                watcher.training = True  # the norm alone: what runs after it infers
            whole = model if root is None else watchers[root]
            for batch in track(loader, "recalibrating", batches):
                (forward or call)(whole, batch)
                seen, count = seen + size_of(batch), count + 1
            if count == 0 or (batches is not None and count < batches):
                wanted = "at least one" if batches is None else str(batches)
                raise SurgeryError(f"The loader gave {count} batches; {wanted} were asked for. The statistics are as they were.")
            reached += [site for site, norm in watchers.items() if int(norm.get_buffer("num_batches_tracked").sum()) > 0]
            if not reached:
                raise SurgeryError("The batches reached no norm. The statistics are as they were.")
            ledger.undo()
            for site, watcher in watchers.items():
                _write(site, watcher)
    finally:
        for module, mode in modes.items():
            module.training = mode
    return seen, reached


def _watcher(site: NormSite, policy: Any) -> Norm:
    """Make a norm that does what the site's does, and keeps statistics by another policy."""
    norm, _, _ = replacement(site, site.info, site.info.spec, {"update_rule": policy})
    norm.reset_running_stats()
    norm.schedule_enabled = False
    if dist.is_available() and dist.is_initialized():
        norm.sync_group = AllReduce()
    if isinstance(site.module, Norm):
        norm.set_condition(site.module._condition)
    return norm


def _write(site: NormSite, watcher: Norm) -> None:
    """Write what was seen; a norm, or a domain, that no sample reached stays as it is."""
    assert watcher.num_batches_tracked is not None  # it keeps statistics
    reached = watcher.num_batches_tracked > 0
    for index in watcher._kept:
        for buffer, new in zip(site.info.running_stats[watcher.cuts[index]], watcher.running_stats(index), strict=True):
            if buffer is not None and new is not None:
                buffer.copy_(torch.where(reached.reshape(-1, 1) if reached.dim() else reached, new.reshape(buffer.shape), buffer))
    for name in ("num_batches_tracked", "num_values_tracked"):
        tally, new = getattr(site.module, name, None), getattr(watcher, name, None)
        if tally is not None and new is not None:
            tally.copy_(torch.where(reached, new, tally).reshape(tally.shape))
