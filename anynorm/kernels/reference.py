"""The definition of every norm in plain torch operations, for any device and dtype and for everything that traces.

moments   one mean and variance per (sample, channel, strip)
scale     y = a (x − mean) + b
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anynorm.core.affine import Coefficients, chain, inverse_std
from anynorm.core.mixing import mix
from anynorm.core.moments import Moments, expand_parts, pool_samples, table_dtype
from anynorm.core.update_rules import as_tables
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params


def normalize(spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
    """Return y and the statistics of the batch."""
    mean, affine, batch = coefficients(spec, x, params, buffers)
    return scale(x, mean, affine), batch


def coefficients(spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, Coefficients, BatchStats]:
    """Return mean and (a, b) of y = a (x − mean) + b, and the statistics of the batch."""
    batch = _batch_stats(spec, x, buffers)
    mean, var = _mix(spec, _stats_by_cut(spec, x, batch, buffers), params)
    return mean, _affine(spec, var, params, buffers), batch


def _batch_stats(spec: ForwardSpec, x: Tensor, buffers: Buffers) -> BatchStats:
    """Compute the moments of x that this pass needs, pooled by each cut."""
    if not any(spec.uses_batch):
        return BatchStats([None for _ in spec.uses_batch])
    sample_moments = moments(x, spec.num_strips(x))
    used = [cut for cut, use in zip(spec.cuts.distinct, spec.uses_batch, strict=True) if use]
    channel_moments = None
    if any([cut.pools_samples for cut in used]):
        labels = buffers.labels if spec.num_domains else None
        channel_moments = spec.sync_group.all_reduce(pool_samples(sample_moments, labels, spec.num_domains))
    by_cut: list[Moments | None] = []
    for cut, use in zip(spec.cuts.distinct, spec.uses_batch, strict=True):
        if not use:
            by_cut.append(None)
        elif channel_moments is not None and cut.pools_samples and not cut.is_ghost:
            by_cut.append(cut.pool_channels(channel_moments))
        else:
            by_cut.append(cut.pool_moments(sample_moments))
    num_values = (
        None
        if channel_moments is None
        else channel_moments.count.expand_as(channel_moments.mean)[:, :1].sum((1, 2), keepdim=True)
    )
    return BatchStats(by_cut, channel_moments, num_values)


def _stats_by_cut(spec: ForwardSpec, x: Tensor, batch: BatchStats, buffers: Buffers) -> list[tuple[Tensor, Tensor]]:
    """Return mean and variance of each cut, from the batch or the running statistics, broadcastable to (n, c, strips)."""
    stats = []
    shape = (x.shape[0], x.shape[1], spec.num_strips(x))
    for index, (cut, running, new) in enumerate(zip(spec.cuts.distinct, buffers.running_stats, batch.by_cut, strict=True)):
        if new is not None:
            mean, var = new.mean, new.var
        else:
            assert running is not None  # a cut uses the batch or has running statistics
            mean, var = as_tables(running, spec.stats_shape(index), table_dtype(x))
        if spec.num_domains and buffers.labels is not None and cut.pools_samples:
            mean, var = mean.index_select(0, buffers.labels), var.index_select(0, buffers.labels)
        stats.append((expand_parts(mean, shape), expand_parts(var, shape)))
    return stats


def _mix(spec: ForwardSpec, by_cut: list[tuple[Tensor, Tensor]], params: Params) -> tuple[Tensor, Tensor]:
    """Return the mixed mean and the mixed variance."""
    mixing = spec.norm_spec.mixing
    mixed = []
    for side, (cuts, logits) in enumerate(((spec.cuts.mean, params.mean_weight), (spec.cuts.var, params.var_weight))):
        tables = [by_cut[k][side] for k in cuts]
        weights = None if logits is None else mixing.weights_by_channel(logits.to(tables[0].dtype), spec.num_features)
        mixed.append(mix(tables, mixing, weights))
    return mixed[0], mixed[1]


def _affine(spec: ForwardSpec, var: Tensor, params: Params, buffers: Buffers) -> Coefficients:
    """Return (a, b) of y = a (x − mean) + b."""
    a = inverse_std(var, spec.eps)
    coefficients = (a, torch.zeros_like(a))
    condition = (params.style_mean, params.style_std) if spec.norm_spec.takes_style else buffers.labels
    for stage in spec.norm_spec.affine.stages:
        gamma, beta = stage(params.of(stage), condition)
        coefficients = chain(coefficients, (gamma.to(var.dtype), beta.to(var.dtype)))
    return coefficients


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype to compute in: float32 for half types, because 300² overflows float16."""
    return x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32


def at_least_float32(x: Tensor) -> Tensor:
    """Return x in the dtype to compute in."""
    return x.to(compute_dtype(x))


def moments(x: Tensor, strips: int) -> Moments:
    """Return the moments of each sample, channel and strip of the flattened positions: a table (n, c, strips).

    Values are first shifted by a number close to their mean, so that float32 sums stay accurate if the mean is far from zero. The
    shift is detached: the result does not depend on it.
    """
    n, c = x.shape[:2]
    rows = at_least_float32(x).reshape(n, c, strips, math.prod(x.shape[2:]) // strips)
    shift = rows.detach().mean(-1, keepdim=True)
    centered = rows - shift
    residual = centered.mean(-1, keepdim=True)
    var = (centered - residual).square().mean(-1)
    dtype = table_dtype(x)
    mean = shift.to(dtype) + residual.to(dtype)
    return Moments(mean.squeeze(-1), var.to(dtype), torch.full((1, 1, 1), rows.shape[-1], dtype=dtype, device=x.device))


def scale(x: Tensor, mean: Tensor, coefficients: tuple[Tensor, Tensor]) -> Tensor:
    """Return y = a (x − mean) + b in x's dtype and memory format; mean, a and b broadcast to (n, c, strips).

    The residual of rounding `mean` to the precision of x is added to b.
    """
    a, b = coefficients
    values = at_least_float32(x)
    shift = mean.detach().to(values.dtype)
    residual = b - a * (mean - shift)
    shift, a, residual = (_expand(table.to(values.dtype), x) for table in (shift, a, residual))
    return ((values - shift) * a + residual).to(x.dtype)  # x first: the result has the memory format of the first operand


def _expand(table: Tensor, x: Tensor) -> Tensor:
    """Return a table (n, c, t) as a tensor that broadcasts with x."""
    space = x.shape[2:]
    if table.shape[-1] == 1:
        return table.reshape(*table.shape[:2], *(1 for _ in space))
    n, c, t = table.shape
    return table[..., None].expand(n, c, t, math.prod(space) // t).reshape(n, c, *space)
