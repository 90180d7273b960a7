"""Magnitude of the estimation shift (ESM) of one norm (xbn Def. 2).

    ESM_μ = ‖μ̂ − μ̃‖₂        ESM_σ = ‖σ̂ − σ̃‖₂

μ̂ and σ̂ are the running statistics; μ̃ and σ̃ are the statistics of the norm's inputs over the data, with the model in eval mode,
so the errors of earlier norms are included. Both variances are unbiased. `relative_mean` and `relative_std` are the ESM divided
by ‖μ̃‖ and ‖σ̃‖; they are dominated by channels with a large scale. `shift` weights all channels equally, and measures how far
the output of the norm is from being standardized:

    shift = max( rms of (μ̂ − μ̃) / σ̃,  rms of ln(σ̂ / σ̃) )

It is 0 for exact statistics, and 1 for means that are off by one standard deviation, or standard deviations that are off by a
factor e. Channels without variance are ignored. For a norm whose mean is 0, σ² is the second moment E[x²].
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.core.moments import MIN_PRESENT_COUNT
from anynorm.core.update_rules import as_tables
from anynorm.diagnostics.buffers import BufferRef, StatBuffers
from anynorm.diagnostics.observe import observe_inputs
from anynorm.diagnostics.statistics import StatAccumulator, num_samples
from anynorm.diagnostics.validation import FiniteCheck
from anynorm.errors import DiagnosticError
from anynorm.surgery.batches import Forward, call
from anynorm.surgery.find import NormSite


@dataclass
class Measurement:
    """The input statistics of each norm, in the order of their first execution.

    Attributes:
        copied_batches: copies of the first batches; see `copy_samples` of `measure`.
    """

    accumulators: list[StatAccumulator] = field(default_factory=list)
    num_passes: int = 0
    num_samples: int = 0
    copied_batches: list[Any] = field(default_factory=list)


def measure(
    model: nn.Module,
    sites: Mapping[NormSite, StatBuffers],
    batches: Iterable[Any],
    forward: Forward = call,
    copy_samples: int = 0,
) -> Measurement:
    """Run batches through a model and accumulate the input statistics of its norms.

    Args:
        model: the model.
        sites: the norms to measure, and the buffers of their running statistics.
        batches: the batches to run.
        forward: a function `forward(model, batch)` that calls the model.
        copy_samples: number of samples to copy: the first batches are copied until they have this many.

    Raises:
        DiagnosticError: if a batch has no tensor, all batches are empty, or the input of a norm is not finite.
    """
    result = Measurement()
    accumulators: dict[NormSite, StatAccumulator] = {}
    finite = FiniteCheck()
    input_sizes: list[int] = []

    def accumulate(site: NormSite, x: Tensor, labels: Tensor | None) -> None:
        finite.check(site.path, x)
        input_sizes.append(len(x))
        accumulators.setdefault(site, StatAccumulator(site, sites[site])).update(x, labels)

    num_copied = 0
    with observe_inputs(sites, accumulate):
        for batch in batches:
            size = num_samples(batch)
            if size is None and forward is call:
                raise DiagnosticError(
                    f"A batch must be a tensor, (x, …), a dictionary or a list of images; got a {type(batch).__name__} "
                    "without a tensor. Pass forward= to call the model with other batches."
                )
            if size == 0:
                continue
            copied = copy.deepcopy(batch) if num_copied < copy_samples else None  # the loader or the model may overwrite it
            input_sizes.clear()
            forward(model, finite.start_batch(batch))
            size = size or (input_sizes[0] if input_sizes else 1)
            result.num_passes, result.num_samples = result.num_passes + 1, result.num_samples + size
            if copied is not None:
                result.copied_batches.append(copied)
                num_copied += size
    if not result.num_passes:
        raise DiagnosticError("The loader must yield at least one batch with a sample; it yielded none.")
    result.accumulators = list(accumulators.values())
    return result


def compute_esm(accumulator: StatAccumulator) -> dict[str, float]:
    """Return the columns `esm_mean esm_std relative_mean relative_std shift` of a norm; domains without samples are ignored."""
    mean_errors, means, mean_shifts = [], [], []
    std_errors, stds, std_shifts = [], [], []
    for cut, refs in accumulator.buffers.items():
        expected = accumulator.moments[cut]
        running_mean, running_var = (None if ref is None else ref.tensor for ref in refs)
        num_domains, parts, strips = expected.mean.shape
        mean, var = as_tables((running_mean, running_var), (num_domains, parts, strips), expected.mean.dtype)
        expected_var = expected.unbiased_var(accumulator.site.info.norm_spec.correction)
        std, has_samples = expected_var.sqrt(), expected.count > MIN_PRESENT_COUNT
        varies = has_samples & (std > 1e-6 * (expected.mean.abs() + std))
        if running_mean is not None:
            mean_errors.append((mean - expected.mean)[has_samples])
            means.append(expected.mean[has_samples])
            mean_shifts.append(((mean - expected.mean) / std)[varies])
        if running_var is not None:
            std_errors.append((var.sqrt() - std)[has_samples])
            stds.append(std[has_samples])
            eps = accumulator.site.info.eps
            std_shifts.append((((var + eps) / (expected_var + eps)).log() / 2)[varies])
    columns = {"esm_mean": _l2_norm(mean_errors), "esm_std": _l2_norm(std_errors)}
    columns["relative_mean"] = _ratio(columns["esm_mean"], _l2_norm(means))
    columns["relative_std"] = _ratio(columns["esm_std"], _l2_norm(stds))
    return columns | {"shift": max(_rms(mean_shifts), _rms(std_shifts))}


def _l2_norm(tables: list[Tensor]) -> float:
    return float(torch.cat(tables).norm()) if tables else 0.0


def _rms(tables: list[Tensor]) -> float:
    count = sum(table.numel() for table in tables)
    return _l2_norm(tables) / math.sqrt(count) if count else 0.0


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.inf if numerator else 0.0


def expected_statistics(accumulator: StatAccumulator) -> dict[BufferRef, Tensor]:
    """Return the correct values of the running statistics: those of the norm's inputs, except for domains without samples."""
    values = {}
    for cut, refs in accumulator.buffers.items():
        moments = accumulator.moments[cut]
        var = moments.unbiased_var(accumulator.site.info.norm_spec.correction)
        for ref, table in zip(refs, (moments.mean, var), strict=True):
            if ref is not None:
                current = ref.tensor.to(table.dtype).reshape(table.shape)
                values[ref] = torch.where(moments.count > MIN_PRESENT_COUNT, table, current).reshape(ref.tensor.shape)
    return values
