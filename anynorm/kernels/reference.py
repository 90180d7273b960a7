"""The reference: all norms in plain torch operations, for any device and dtype, and for tracing.

moments   one mean and variance per (sample, channel, strip)
scale     y = a (x − mean) + b

A worked example: one forward pass of Switchable Normalization in training, `anynorm.make("sn", 16)(x)` with x (8, 16, 4, 4).

    spec string      "sn" is in+ln+bn, mixed by softmax weights, for mean and variance           registry.py, norms.py
                     NormSpec(mean=(in, ln, bn), var=(in, ln, bn), Softmax(), PerChannel)        core/spec.py
    resolve(16)      the cuts for 16 channels; parts (samples, channels, space) for 8 samples:   core/cuts.py
                     in (8, 16, 1)    ln (8, 1, 1)    bn (1, 16, 1)
    layer            weight, bias (16,)    mean_weight, var_weight (3,)                          layers/norm.py
                     running_mean, running_var (16,) of bn only                                  layers/running_stats.py
    ForwardSpec      cuts (in, ln, bn), uses_batch (True, True, True); 16 units, 1 strip         kernels/interface.py

    normalize (below), which `kernels.normalize` selects if neither the C++ nor the Triton kernels are used:

    center           (8, 16, 1)      mean of each sample, channel and strip, without gradient    _row_means
    centered         (8, 16, 4, 4)   x − center, the only tensor of this size that is saved      _subtract
    sample moments   (8, 16, 1)      mean, var and count = 16 of each sample and channel         _centered_moments
    channel moments  (1, 16, 1)      pooled over the samples (and processes); count = 128        _batch_stats, core/moments.py
    by_cut           in (8, 16, 1)   the sample moments                           count = 16
                     ln (8, 1, 1)    pooled over the channels of each sample      count = 256
                     bn (1, 16, 1)   the channel moments                          count = 128
    mixing weights   (1, 3)          w = softmax(λ) = (1/3, 1/3, 1/3) at first                   core/mixing.py
    mean, var        (8, 16, 1)      w₁ in + w₂ ln + w₃ bn; the three tables broadcast           _mix
    r                (8, 16, 1)      1/sqrt(var + ε)                                             core/affine.py
    a, b             (8, 16, 1)      γ r and β, with γ = weight and β = bias as (1, 16, 1)       _chain
    y                (8, 16, 4, 4)   a · centered + b − a (mean − center) = a (x − mean) + b     scale

    The layer then updates the running statistics from the moments of bn (core/update_rules.py):
    s ← 0.9 s + 0.1 m, with the unbiased variance var · 128/127.

In inference, bn uses running statistics (uses_batch = (True, True, False)); in and ln are computed as above. The C++ kernels
(csrc/) and the Triton kernels (gpu.py, gpu_kernels.py) compute the same tables, and a closed form of the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anynorm.core.activation import Activation
from anynorm.core.affine import Coefficients, chain, inverse_std
from anynorm.core.compat import is_distributed, is_exporting, is_transformed
from anynorm.core.mixing import mix
from anynorm.core.moments import Moments, about_zero, expand_parts, pool_samples, table_dtype
from anynorm.core.update_rules import as_tables
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params
from anynorm.kernels.ragged import Ragged, as_rows, expand_table


def normalize(spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
    """Return y and the batch statistics. For the arguments, see `kernels.normalize`.

    One tensor of the size of x is saved for backward, x − center; two for norms with one statistic per position.
    """
    ragged = buffers.ragged
    if any(spec.uses_batch):
        centered, center, rows = _sample_moments(spec, x, ragged)
        batch = _batch_stats(spec, rows, buffers)
        mean, var = _mix(spec, _stats_by_cut(spec, x, batch, buffers), params)
    else:
        batch = BatchStats([None for _ in spec.uses_batch])
        mean, var = _mix(spec, _stats_by_cut(spec, x, batch, buffers), params)
        center = mean.detach()
        centered = _subtract(x, center, ragged) if spec.cuts.mean else _values(x, ragged)
    r, stages = inverse_std(var, spec.eps), _stages(spec, params, buffers)
    if spec.has_positional_cut:  # a = γ r, with r per position and γ per channel, would be as large as x
        normalized = scale(centered, center, mean, (r, torch.zeros_like(r)), x, ragged)
        y = _apply(_chain(stages, torch.ones_like(r[:1, :1, :1])), normalized, ragged)
    else:
        y = scale(centered, center, mean, _chain(stages, r), x, ragged)
    y = finish(y, params.residual, spec.activation)
    y = y if ragged is None else ragged.keep(y)
    return with_strides_of(x, y.to(x.dtype)), batch


def finish(y: Tensor, residual: Tensor | None, activation: Activation | None) -> Tensor:
    """Return φ(y + residual)."""
    y = y if residual is None else y + residual
    return y if activation is None else activation(y)


def gradients(
    spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers, dy: Tensor, needed: Sequence[bool]
) -> list[Tensor | None]:
    """Return the gradients of x and `params`, which can be differentiated again; None for gradients that are not needed.

    Args:
        spec, x, params, buffers: see `kernels.normalize`.
        dy: the gradient with respect to y.
        needed: whether the gradient of x and of each of `params` is needed.
    """
    with torch.enable_grad():
        # Aliases of the inputs: if one input is a function of another, autograd must not add its gradient to that of the other.
        inputs = [None if tensor is None else tensor.view_as(tensor) for tensor in (x, *params)]
        aliased, *rest = inputs
        assert aliased is not None
        y, _ = normalize(spec, aliased, Params(*rest), buffers)
        wanted = [tensor for tensor, need in zip(inputs, needed, strict=True) if need and tensor is not None]
        if not wanted:
            return [None for _ in inputs]
        grads = iter(torch.autograd.grad(y, wanted, dy, create_graph=True, allow_unused=True, materialize_grads=True))
    return [next(grads) if need and tensor is not None else None for tensor, need in zip(inputs, needed, strict=True)]


def coefficients(
    spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers, sample_moments: Moments | None = None
) -> tuple[Tensor, Coefficients]:
    """Return mean and (a, b) of y = a (x − mean) + b.

    Args:
        spec, x, params, buffers: see `kernels.normalize`.
        sample_moments: the moments (n, c, strips) of the samples; None for those of x.
    """
    batch = BatchStats([None for _ in spec.uses_batch])
    if any(spec.uses_batch):
        if sample_moments is None:
            sample_moments = _sample_moments(spec, x)[2]
        elif not spec.cuts.mean:
            sample_moments = about_zero(sample_moments)
        batch = _batch_stats(spec, sample_moments, buffers)
    mean, var = _mix(spec, _stats_by_cut(spec, x, batch, buffers), params)
    return mean, _chain(_stages(spec, params, buffers), inverse_std(var, spec.eps))


def normalize_by(spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers, sample_moments: Moments) -> Tensor:
    """Return y for given moments (n, c, 1) of the samples, instead of those of x; see `kernels.normalize`."""
    mean, affine = coefficients(spec, x, params, buffers, sample_moments)
    center = sample_moments.mean
    y = scale(_subtract(x, center), center, mean, affine, x)
    return with_strides_of(x, finish(y, params.residual, spec.activation).to(x.dtype))


def _batch_stats(spec: ForwardSpec, sample_moments: Moments, buffers: Buffers) -> BatchStats:
    """Pool the moments (n, units, strips) of the samples into the statistics of each cut that uses the batch."""
    channel_moments = None
    if spec.pools_batch:
        labels = buffers.labels if spec.num_domains else None
        channel_moments = spec.sync_group.pool_moments(pool_samples(sample_moments, labels, spec.num_domains))
    by_cut: list[Moments | None] = []
    for cut, use in zip(spec.cuts.distinct, spec.uses_batch, strict=True):
        if not use:
            by_cut.append(None)
        elif channel_moments is not None and cut.pools_samples and not cut.is_ghost:
            by_cut.append(cut.pool_channels(channel_moments))
        else:
            by_cut.append(cut.pool_moments(sample_moments))
    if channel_moments is None:
        return BatchStats(by_cut)
    counts = channel_moments.count.expand_as(channel_moments.mean)[:, :1].sum((1, 2), keepdim=True)
    return BatchStats(by_cut, channel_moments, counts * (channel_moments.mean.shape[1] / spec.num_features))


def _stats_by_cut(spec: ForwardSpec, x: Tensor, batch: BatchStats, buffers: Buffers) -> list[tuple[Tensor, Tensor]]:
    """Return the mean and variance of each cut, from the batch or from running statistics; they broadcast to (n, c, strips)."""
    stats = []
    num_samples = x.shape[0] if buffers.ragged is None else buffers.ragged.num_samples
    shape = (num_samples, x.shape[1], spec.num_strips(x))
    for index, (cut, running, new) in enumerate(zip(spec.cuts.distinct, buffers.running_stats, batch.by_cut, strict=True)):
        if new is not None:
            mean, var = new.mean, new.var
            if buffers.ragged is not None:  # a statistic without values would be 0, and its inverse infinite if ε = 0
                var = torch.where(new.count > 0, var, 1.0)
        else:
            assert running is not None  # a cut that does not use the batch has running statistics
            mean, var = as_tables(running, spec.stats_shape(index), table_dtype(x))
        if spec.num_domains and buffers.labels is not None and cut.pools_samples:
            mean, var = mean.index_select(0, buffers.labels), var.index_select(0, buffers.labels)
        stats.append((cut.expand(mean, shape), cut.expand(var, shape)))
    return stats


def _mix(spec: ForwardSpec, by_cut: list[tuple[Tensor, Tensor]], params: Params) -> tuple[Tensor, Tensor]:
    """Return the mean and the variance, mixed over the cuts; a mean without cuts is 0."""
    mixing = spec.norm_spec.mixing
    mixed = []
    for side, (cuts, logits) in enumerate(((spec.cuts.mean, params.mean_weight), (spec.cuts.var, params.var_weight))):
        tables = [by_cut[k][side] for k in cuts] or [by_cut[0][side].new_zeros(1, 1, 1)]
        weights = None if logits is None else mixing.weights_by_channel(logits.to(tables[0].dtype), spec.num_features)
        mixed.append(mix(tables, mixing, weights))
    return mixed[0], mixed[1]


def _stages(spec: ForwardSpec, params: Params, buffers: Buffers) -> list[Coefficients]:
    """Return (γ, β) of each affine stage."""
    condition = (params.style_mean, params.style_std) if spec.norm_spec.takes_style else buffers.labels
    return [stage(params.of(stage), condition) for stage in spec.norm_spec.affine.stages]


def _chain(stages: list[Coefficients], r: Tensor) -> Coefficients:
    """Return (a, b) of a multiplication by r followed by the affine stages."""
    coefficients = (r, torch.zeros_like(r))
    for gamma, beta in stages:
        coefficients = chain(coefficients, (gamma.to(r.dtype), beta.to(r.dtype)))
    return coefficients


def with_strides_of(x: Tensor, y: Tensor) -> Tensor:
    """Return y with the strides of x in axes of length 1, so that its memory format is kept in later layers."""
    if torch.compiler.is_compiling() or 1 not in x.shape or is_transformed(x) or y.stride() == x.stride():
        return y
    lengths = zip(x.shape, x.stride(), y.stride(), strict=True)
    return y.as_strided(x.shape, x.stride()) if all(size == 1 or a == b for size, a, b in lengths) else y


def in_layout_of(x: Tensor, y: Tensor) -> Tensor:
    """Return y with the strides of a dense x, as a copy if they differ; in transforms and traces, y itself."""
    if torch.compiler.is_compiling() or is_transformed(x):
        return y
    y = with_strides_of(x, y)
    return y if y.stride() == x.stride() else torch.empty_like(x).copy_(y)


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of the computation: float32 for half-precision x, because 300² overflows float16."""
    return x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32


def at_least_float32(x: Tensor) -> Tensor:
    """Convert x to the dtype of the computation, float32 or float64."""
    return x.to(compute_dtype(x))


def moments(x: Tensor, strips: int) -> Moments:
    """Return the moments of each sample, channel and strip of the flattened positions, (n, c, strips)."""
    center = _row_means(x, x.shape[1], strips)
    return _centered_moments(_subtract(x, center), center, x)


def _sample_moments(spec: ForwardSpec, x: Tensor, ragged: Ragged | None = None) -> tuple[Tensor, Tensor, Moments]:
    """Return x − center, center, and the moments (n, units, strips) of the samples; about zero for a norm whose mean is 0."""
    units, strips = spec.num_units, spec.num_strips(x)
    if spec.cuts.mean:
        center = _row_means(x, units, strips, ragged)
        centered = _subtract(x, center, ragged)
        return centered, center, _centered_moments(centered, center, x, ragged)
    values, dtype = _values(x, ragged), table_dtype(x)
    if ragged is None:
        rows = as_rows(values, units, strips)
        var, count = rows.square().mean((2, 4)).to(dtype), _count(rows, dtype)
    else:
        count = ragged.counts(strips).to(dtype) * (x.shape[1] // units)
        var = ragged.sum(values.square(), units, strips).to(dtype) / count.clamp(min=1)
    return values, values.new_zeros(1, 1, 1), Moments(torch.zeros_like(var), var, count)


def _values(x: Tensor, ragged: Ragged | None) -> Tensor:
    """Return x in the dtype of the computation, with 0 at hidden positions."""
    values = at_least_float32(x)
    return values if ragged is None else ragged.keep(values)


def _row_means(x: Tensor, units: int, strips: int, ragged: Ragged | None = None) -> Tensor:
    """Return the means of x over equal parts of channels and positions, (n, units, strips), without gradient."""
    values = at_least_float32(x.detach())
    if ragged is None:
        return as_rows(values, units, strips).mean((2, 4))
    count = ragged.counts(strips) * (x.shape[1] // units)
    return (ragged.sum(ragged.keep(values), units, strips) / count.clamp(min=1)).to(values.dtype)


def _centered_moments(centered: Tensor, center: Tensor, x: Tensor, ragged: Ragged | None = None) -> Moments:
    """Return the moments of x, computed from `centered` = x − center so that float32 sums are accurate if the mean is large."""
    dtype = table_dtype(x)
    if ragged is not None:
        count = ragged.counts(center.shape[2]).to(dtype) * (x.shape[1] // center.shape[1])
        total, squares = (ragged.sum(values, *center.shape[1:]).to(dtype) for values in (centered, centered.square()))
        residual = total / count.clamp(min=1)  # the rounding error of the center, so that nothing cancels in the variance
        return Moments(center.to(dtype) + residual, (squares / count.clamp(min=1) - residual.square()).clamp(min=0), count)
    rows = as_rows(centered, *center.shape[1:])
    if is_exporting():  # var_mean is not a core ATen operator
        var, residual = rows.var((2, 4), correction=0), rows.mean((2, 4))
    elif rows.shape[0] and rows.shape[2] * rows.shape[4] > 1:
        var, residual = torch.var_mean(rows, (2, 4), correction=0)
    else:  # var_mean would warn about an empty batch, and takes 20 times as long as a mean over rows of one value
        residual = rows.mean((2, 4))
        var = residual.detach() * 0  # NaN for a value that is not finite
    return Moments(center.to(dtype) + residual.to(dtype), var.to(dtype), _count(rows, dtype))


def _count(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the number of values per row of a tensor from `as_rows`; a DTensor for one."""
    count = rows.shape[2] * rows.shape[4]
    if is_distributed(rows):
        return rows.new_full((1, 1, 1), count, dtype=dtype)
    return torch.full((1, 1, 1), count, dtype=dtype, device=rows.device)


def scale(
    centered: Tensor, center: Tensor, mean: Tensor, affine: Coefficients, x: Tensor, ragged: Ragged | None = None
) -> Tensor:
    """Return y = a (x − mean) + b = a (x − center) + b − a (mean − center) in the memory format of x.

    Args:
        centered: x − center.
        center: values close to the mean, without gradient, (n or 1, parts of channels, strips).
        mean: the mean; broadcasts to (n, c, strips).
        affine: a and b; each broadcasts to (n, c, strips).
        x: the input, used for its shape.
        ragged: the valid positions of each sample; None for all.
    """
    a, b = affine
    center = _expand_channels(center, x)
    return _apply((a, b - a * (mean - center.to(mean.dtype))), centered, ragged)


def _apply(coefficients: Coefficients, values: Tensor, ragged: Ragged | None = None) -> Tensor:
    """Return a · values + b; a and b broadcast to (n, c, strips)."""
    a, b = (_expand(table.to(values.dtype), values, ragged) for table in coefficients)
    return values * a + b  # values first: the result has the memory format of the first operand


def _subtract(x: Tensor, table: Tensor, ragged: Ragged | None = None) -> Tensor:
    """Return x − table in the dtype of the computation and the memory format of x, and 0 at hidden positions."""
    values = at_least_float32(x)
    centered = values - _expand(_expand_channels(table, x).to(values.dtype), x, ragged)
    return centered if ragged is None else ragged.keep(centered)


def _expand_channels(table: Tensor, x: Tensor) -> Tensor:
    """Repeat the entries of a table (n or 1, parts of channels, strips) to (n or 1, c, strips)."""
    return expand_parts(table, (table.shape[0], x.shape[1], table.shape[2]))


def _expand(table: Tensor, x: Tensor, ragged: Ragged | None) -> Tensor:
    """Reshape a table that broadcasts to (n, c, strips) to a tensor that broadcasts to x."""
    return expand_table(table, x) if ragged is None else ragged.expand(table, x)
