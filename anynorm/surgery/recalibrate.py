"""Re-estimation of the running statistics of all norms from data, without changing the parameters.

    pooled             the moments of all values, exact for batches of unequal size
    averaged           the mean of the statistics of the batches, with equal weights
    averaged_biased    the same, with biased variances                               (sn: "batch average")

The variances of the first two are unbiased, as in torch. sn averages the variances of its eq. 2, which divide by the number n of
values: they are smaller by the factor (n − 1) / n, which matters for a few values per statistic (n = 2: one half).

Norms normalize by batch statistics while all other modules are in eval mode, so dropout is off. With a process group, samples are
pooled over all processes. Frozen norms are not changed.

The statistics of new, unlabeled data (target) can be mixed with the current statistics (source), α = `source_weight`:

    mean = α mean_source + (1 − α) mean_target        var = α var_source + (1 − α) var_target

This is the mixture of Schneider et al. (2020), who mix variances instead of pooling moments: the variance of the union of source
and target would be larger by α (1 − α) (mean_source − mean_target)². They choose α = N / (N + n) for n target samples, where the
source statistics count as N samples. See `source_mixing`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from anynorm.core.update_rules import Cumulative, CumulativeBiased, Frozen, Pooled, Running, UpdateRule
from anynorm.errors import SurgeryError
from anynorm.kernels.sync import AllReduce
from anynorm.layers.norm import Norm
from anynorm.progress import track
from anynorm.surgery.batches import Forward, call, size_of
from anynorm.surgery.find import NormSite, check_model, find_norms
from anynorm.surgery.modes import preserve_modes
from anynorm.surgery.new_norm import make_equivalent
from anynorm.surgery.report import SurgeryReport
from anynorm.surgery.source_mixing import mix_with_source
from anynorm.surgery.undo import UndoLog, all_or_nothing, temporary_changes

ESTIMATORS: dict[str, type[Pooled | Cumulative | CumulativeBiased]] = {
    "pooled": Pooled,
    "averaged": Cumulative,
    "averaged_biased": CumulativeBiased,
}
_COUNTERS = ("num_batches_tracked", "num_values_tracked")


def has_running_stats(model: nn.Module) -> bool:
    """Whether a model has a norm with running statistics that are not frozen."""
    return any(_is_updated(site) for site in find_norms(model))


def recalibrate(
    model: nn.Module,
    loader: Iterable[Any],
    batches: int | None = None,
    *,
    estimator: str = "pooled",
    source_weight: float = 0.0,
    forward: Forward | None = None,
) -> SurgeryReport:
    """Re-estimate the running statistics of a model from data, in place.

    Args:
        model: the model.
        loader: batches: tensors, (x, …), dictionaries, or lists of images; see `anynorm.surgery.batches`. A tensor is one batch.
        batches: number of batches to use; None for all.
        estimator: "pooled", "averaged" or "averaged_biased".
        source_weight: α, the weight of the current statistics: 0 replaces them, 1 keeps them. With few new samples, use
            N / (N + n) for n new samples, where the current statistics count as N samples.
        forward: a function `forward(model, batch)` that calls the model, if the call in `anynorm.surgery.batches` does not suit
            it.

    Returns:
        A report with one row per norm. `mean_change` is the mean absolute change of the running means, in old standard
        deviations; `std_change` is the mean relative change of the standard deviations.

    Raises:
        SurgeryError: if an argument is out of range, if no norm has running statistics to estimate, if norms are connected
            (bkn), if the loader has too few batches, or if the batches reach no norm. The model is unchanged.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> print(recalibrate(model, torch.randn(64, 3, 8, 8).split(16)).finding)
    1 of 1 norms recalibrated on 64 samples (pooled); largest change: norm '1'.
    """
    check_model(model)
    _check_arguments(estimator, source_weight)
    sites = [site for site in find_norms(model) if _is_updated(site)]
    if not sites:
        raise SurgeryError(
            f"This {type(model).__name__} has no norm with running statistics that are not frozen: nothing to recalibrate."
        )
    if connected := [site.path for site in sites if getattr(site.module, "is_connected", False)]:
        raise SurgeryError(
            f"recalibrate needs norms that do not depend on each other; '{connected[0]}' is one of a chain of "
            f"{len(connected)} layers of bkn, whose running statistics are averages over training steps. The model is unchanged."
        )
    with all_or_nothing() as undo_log:
        old_buffers = {site: _save_buffers(site, undo_log) for site in sites}
        loader = [loader] if isinstance(loader, Tensor) else loader
        estimation = _Estimation(ESTIMATORS[estimator](), source_weight, forward or call)
        samples, reached = estimation.run(model, sites, loader, batches)
    rows: list[dict[str, Any]] = [{"path": site.path, **_change(site, old_buffers[site])} for site in sites if site in reached]
    largest = max(rows, key=lambda row: max(row["mean_change"], row["std_change"]))["path"]
    rows += [{"path": site.path, "note": "unchanged: no sample reached it"} for site in sites if site not in reached]
    how = f"{estimator}, source weight {source_weight:.3g}" if source_weight else estimator
    place = f"norm '{largest}'" if largest else "the model itself"
    finding = f"{len(reached)} of {len(sites)} norms recalibrated on {samples} samples ({how}); largest change: {place}."
    return SurgeryReport(rows, finding, model, undo_log.undo)


def _check_arguments(estimator: str, source_weight: float) -> None:
    if estimator not in ESTIMATORS:
        raise SurgeryError(f"estimator must be one of {' '.join(ESTIMATORS)}; got {estimator!r}.")
    if not 0 <= source_weight <= 1:
        raise SurgeryError(
            f"source_weight must be in [0, 1]; got {source_weight}. It is the weight of the current statistics, such as "
            "N / (N + n) for a prior of N samples and n new ones."
        )


def _is_updated(site: NormSite) -> bool:
    """Whether a norm has running statistics that training updates."""
    return not site.unsupported and bool(site.info.running_stats) and not isinstance(site.info.update_rule, Frozen)


def _save_buffers(site: NormSite, undo_log: UndoLog) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of each running statistic or counter of a site and a copy of it; the undo log restores the copies."""
    buffers = [tensor for pair in site.info.running_stats.values() for tensor in pair if tensor is not None]
    buffers += [counter for name in _COUNTERS if (counter := getattr(site.module, name, None)) is not None]
    pairs = [(buffer, buffer.clone()) for buffer in buffers]
    for buffer, old in pairs:
        undo_log.undo_steps.append(lambda buffer=buffer, old=old: buffer.copy_(old))  # type: ignore[misc]
    return pairs


def _change(site: NormSite, buffers: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Return mean_change and std_change of a norm, given pairs of a buffer and its old value; see `recalibrate`.

    They are those of its first running mean and first running variance; 0 without one, as for a norm whose mean is 0.
    """
    old = {id(buffer): value.double() for buffer, value in buffers}
    sides = zip(*site.info.running_stats.values(), strict=True)
    mean, var = (next((table for table in side if table is not None), None) for side in sides)
    old_std, change = torch.ones(()), {"mean_change": 0.0, "std_change": 0.0}
    if var is not None:
        old_std = old[id(var)].clamp(min=1e-12).sqrt()
        change["std_change"] = float((var.double().clamp(min=1e-12).sqrt() / old_std - 1).abs().mean())
    if mean is not None:
        old_std = old_std if old_std.shape == mean.shape else old_std.mean()
        change["mean_change"] = float(((mean.double() - old[id(mean)]) / old_std).abs().mean())
    return change


@dataclass(frozen=True)
class _Estimation:
    """Settings of the estimation; see `recalibrate`."""

    update_rule: UpdateRule
    source_weight: float
    forward: Forward

    def run(self, model: nn.Module, sites: list[NormSite], loader: Any, batches: int | None) -> tuple[int, list[NormSite]]:
        """Run the batches with norms in train mode, and copy their running statistics into the norms of the model.

        Returns:
            The number of samples, and the norms that received at least one sample.
        """
        with preserve_modes(model.modules()), torch.no_grad():
            estimating = {site: _estimating_norm(site, self.update_rule) for site in sites}
            model.eval()
            root = model
            with temporary_changes() as undo_log:
                for site, norm in estimating.items():
                    replacement = self._replacement(site, norm)
                    undo_log.replace(site, replacement)
                    root = root if site.parents else replacement
                samples = self._run_batches(root, loader, batches)
            reached = [site for site, norm in estimating.items() if int(norm.get_buffer("num_batches_tracked").sum()) > 0]
            if not reached:
                raise SurgeryError("The batches reached no norm. The statistics are unchanged.")
            for site, norm in estimating.items():
                _copy_statistics(norm, site, self.source_weight)
        return samples, reached

    def _replacement(self, site: NormSite, norm: Norm) -> Norm:
        """Return the norm that temporarily replaces the norm of a site: `norm`, or a mixing norm that passes its input to it."""
        norm.eval()
        norm.training = True  # only the norm itself: its post modules stay in eval mode
        if not self.source_weight:
            return norm
        mixed = _pooling_samples(make_equivalent(site, update_rule=Running(1 - self.source_weight)), site).eval()
        mix_with_source(mixed, estimator=norm)
        return mixed

    def _run_batches(self, model: nn.Module, loader: Any, batches: int | None) -> int:
        """Run the batches and return the number of samples."""
        samples = count = 0
        for batch in track(loader, "recalibrating", batches):
            self.forward(model, batch)
            samples, count = samples + size_of(batch), count + 1
        if count < (batches or 1):
            raise SurgeryError(
                f"The loader must have at least {batches or 1} batches; got {count}. The statistics are unchanged."
            )
        return samples


def _estimating_norm(site: NormSite, update_rule: UpdateRule) -> Norm:
    """Return a copy of the norm of a site with reset running statistics."""
    norm = _pooling_samples(make_equivalent(site, update_rule=update_rule, single_value="error"), site)
    norm.reset_running_stats()
    return norm


def _pooling_samples(norm: Norm, site: NormSite) -> Norm:
    """Disable the schedule of a norm, synchronize it over all processes, and set the condition and mask of the norm of a site."""
    norm.schedule_enabled = False
    if dist.is_available() and dist.is_initialized():
        norm.sync_group = AllReduce()
    if isinstance(site.module, Norm):
        norm.set_condition(site.module._condition)
        norm.set_mask(site.module._mask)
    return norm


def _copy_statistics(norm: Norm, site: NormSite, source_weight: float) -> None:
    """Mix the statistics of `norm` into the norm of a site, except those of norms or domains that received no sample."""
    assert norm.num_batches_tracked is not None  # it has running statistics
    reached = norm.num_batches_tracked > 0
    for index in norm.tracked_cuts:
        for buffer, new in zip(site.info.running_stats[norm.cuts[index]], norm.running_stats(index), strict=True):
            if buffer is not None and new is not None:
                mixed = torch.lerp(new.reshape(buffer.shape), buffer, source_weight)
                buffer.copy_(torch.where(reached.reshape(-1, 1) if reached.dim() else reached, mixed, buffer))
    for name in _COUNTERS:
        counter, new = getattr(site.module, name, None), getattr(norm, name, None)
        if counter is not None and new is not None:
            counter.copy_(torch.where(reached, new, counter).reshape(counter.shape))
