"""The two ends of every norm in plain torch: the definition, for any device and dtype, and everything that traces.

moments   one mean and variance for each (sample, channel, strip)
scale     y = a (x − mean) + b
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anynorm.core.affine import Coefficients, chain, standardize
from anynorm.core.mixing import mix
from anynorm.core.moments import Moments, pool_samples, spread, table_dtype
from anynorm.core.update_rules import as_tables
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params


def normalize(task: ForwardSpec, x: Tensor, owned: Params, given: Buffers) -> tuple[Tensor, BatchStats]:
    """Do a pass: y, and what was taken from x for the population."""
    mean, affine, batch = coefficients(task, x, owned, given)
    return scale(x, mean, affine), batch


def coefficients(task: ForwardSpec, x: Tensor, owned: Params, given: Buffers) -> tuple[Tensor, Coefficients, BatchStats]:
    """Give mean, a and b of y = a (x − mean) + b, and what was taken from x for the population."""
    batch = _observe(task, x, given)
    mean, var = _mix(task, _recall(task, x, batch, given), owned)
    return mean, _affine(task, var, owned, given), batch


def _observe(task: ForwardSpec, x: Tensor, given: Buffers) -> BatchStats:
    """Take the moments of x that this pass needs, pooled by each cut."""
    if not any(task.uses_batch):
        return BatchStats([None for _ in task.uses_batch])
    rows = moments(x, task.strips(x))
    looking = [cut for cut, look in zip(task.fitted.cuts, task.uses_batch, strict=True) if look]
    columns = None
    if any([cut.pools_samples for cut in looking]):
        columns = task.sync_group.all_reduce(pool_samples(rows, given.labels if task.domains else None, task.domains))
    by_cut: list[Moments | None] = []
    for cut, look in zip(task.fitted.cuts, task.uses_batch, strict=True):
        if not look:
            by_cut.append(None)
        elif columns is not None and cut.pools_samples and not cut.is_ghost:
            by_cut.append(cut.pool_columns(columns))
        else:
            by_cut.append(cut.pool_rows(rows))
    values = None if columns is None else columns.count.expand_as(columns.mean)[:, :1].sum((1, 2), keepdim=True)
    return BatchStats(by_cut, columns, values)


def _recall(task: ForwardSpec, x: Tensor, batch: BatchStats, given: Buffers) -> list[tuple[Tensor, Tensor]]:
    """Give mean and variance of each cut, from the batch or from what is kept, as tables that broadcast to (n, c, strips)."""
    found = []
    shape = (x.shape[0], x.shape[1], task.strips(x))
    for index, (cut, kept, seen) in enumerate(zip(task.fitted.cuts, given.kept, batch.by_cut, strict=True)):
        if seen is not None:
            mean, var = seen.mean, seen.var
        else:
            assert kept is not None  # each cut looks at the batch or is served
            mean, var = as_tables(kept, task.kept_shape(index), table_dtype(x))
        if task.domains and given.labels is not None and cut.pools_samples:
            mean, var = mean.index_select(0, given.labels), var.index_select(0, given.labels)
        found.append((spread(mean, shape), spread(var, shape)))
    return found


def _mix(task: ForwardSpec, by_cut: list[tuple[Tensor, Tensor]], owned: Params) -> tuple[Tensor, Tensor]:
    """Weigh the cuts of the mean and those of the variance."""
    mixing, channels = task.norm_spec.mixing, task.channels
    mixed = []
    for side, (cuts, logits) in enumerate(((task.fitted.mean, owned.mean_weight), (task.fitted.var, owned.var_weight))):
        tables = [by_cut[k][side] for k in cuts]
        weights = None if logits is None else mixing.spread(logits.to(tables[0].dtype), channels)
        mixed.append(mix(tables, mixing, weights))
    return mixed[0], mixed[1]


def _affine(task: ForwardSpec, var: Tensor, owned: Params, given: Buffers) -> Coefficients:
    """Give a and b of y = a (x − mean) + b."""
    coefficients = standardize(var, task.eps)
    for stage in task.norm_spec.affine.stages:
        condition = (owned.style_mean, owned.style_std) if task.norm_spec.takes_style else given.labels
        gamma, beta = stage(owned.of(stage), condition)
        coefficients = chain(coefficients, (gamma.to(var.dtype), beta.to(var.dtype)))
    return coefficients


def working(x: Tensor) -> Tensor:
    """Half types are summed in float32: 300² is past the range of float16."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def moments(x: Tensor, strips: int) -> Moments:
    """Take the moments of each sample, channel and strip of the flattened space: a table (n, c, strips).

    The values are shifted by a number near their mean first (no gradient belongs to it, for any number gives the same
    result), so that float32 sums lose nothing however far the mean is from zero.
    """
    n, c = x.shape[:2]
    rows = working(x).reshape(n, c, strips, math.prod(x.shape[2:]) // strips)
    shift = rows.detach().mean(-1, keepdim=True)
    centred = rows - shift
    rest = centred.mean(-1, keepdim=True)
    var = (centred - rest).square().mean(-1)
    wide = table_dtype(x)
    mean = shift.to(wide) + rest.to(wide)
    return Moments(mean.squeeze(-1), var.to(wide), torch.full((1, 1, 1), rows.shape[-1], dtype=wide, device=x.device))


def scale(x: Tensor, mean: Tensor, coefficients: tuple[Tensor, Tensor]) -> Tensor:
    """Give y = a (x − mean) + b in x's dtype and memory format; mean and the coefficients a, b broadcast to (n, c, strips).

    The rounding of `mean` to x's precision is paid back in b.
    """
    a, b = coefficients
    values = working(x)
    shift = mean.detach().to(values.dtype)
    rest = b - a * (mean - shift)
    shift, a, rest = (_unfold(table.to(values.dtype), x) for table in (shift, a, rest))
    return ((values - shift) * a + rest).to(x.dtype)  # x first: the first operand's memory format is the result's


def _unfold(table: Tensor, x: Tensor) -> Tensor:
    """Lay a table (n, c, t) over the axes of x."""
    space = x.shape[2:]
    if table.shape[-1] == 1:
        return table.reshape(*table.shape[:2], *(1 for _ in space))
    n, c, t = table.shape
    return table[..., None].expand(n, c, t, math.prod(space) // t).reshape(n, c, *space)
