"""The Triton kernels: two passes over x in forward, two over x and dy in backward, and passes over small tables between them.

x is divided into rows (sample, channel, strip) of `length` positions: row = (sample · c + channel) · strips + strip.

    row_sums       per row: k = mean of the first tile, Σ u and Σ u (x − k), with u = x − k in forward and u = d in backward
    pool_rows      forward: moments of each column (channel, strip) per domain; statistics of cuts that do not pool all samples
    pool_columns   forward: statistics of cuts that pool all samples, from the columns or running statistics; updates the latter
    gradients      backward: dmean = −a Σ d, dvar = −a r² Σ d (x − mean) / 2, gradients of affine and λ, summed over samples
    reduce         backward: dM = Σ w dmean, dV = Σ w′ dvar of each part of a cut; gradients of the parameters
    coefficients   forward: p = a, q = b + a (shift − mean);
                   backward: p = Σ 2 dV / count, q = p shift + Σ (dM − 2 dV M) / count, over the cuts that use the batch
    apply          forward: z = p (x − shift) + q + residual, y = φ(z); backward: dx = a d + p (x − shift) + q

Without cuts of the mean, all moments are about zero: mean 0, var E[x²] (`_pool`).

d = dy φ′(z) is the gradient of z and of the residual. Without a residual, backward recomputes z from x and the coefficients of
forward, which it computes again; with one, φ′ is computed from y, and `row_sums` stores d, which `apply` reads in place of dy.

Tables with one entry per row are float32, all other tables float64. The grids depend only on shapes, not on values.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import triton
import triton.language as tl

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether the kernels run in Triton's interpreter, on CPU tensors."""


class KernelShape(NamedTuple):
    """The sizes of a pass. A program reads `chunk` positions of a row; `num_splits` programs read a whole row."""

    n: int
    c: int
    length: int
    chunk: int
    num_splits: int
    num_rows: int
    num_stats: int


class KernelLayout(NamedTuple):
    """The memory layout of x: whether it is channels_last, a divisor `align` of the length of its contiguous axis, and its tiles.

    A tile has the shape (rows, positions).
    """

    last: bool
    align: int
    strips: int
    rows: int
    positions: int


class KernelCut(NamedTuple):
    """A cut, and the shape (parts, members) of the tiles in which its table is computed.

    `samples_per_part` is 0 if all samples are pooled or running statistics are used, `channels` is 0 for one part per channel.
    `mean` and `var` are the index of the cut among the cuts of the mean and of the variance, −1 if it is not among them.
    """

    samples_per_part: int
    channels: int
    strips: int
    uses_batch: bool
    mean: int
    var: int
    parts: int
    members: int


class KernelNorm(NamedTuple):
    """The definition of a norm as compile-time constants of the kernels.

    `columns` is the cut of sums over samples; `channels`, `second` and `logits` are the cuts of the gradients of the affine, of
    the second affine and of λ. The second affine has one row per "class" or "sample", or a single row (`second_affine` = "").
    """

    cuts: tuple[KernelCut, ...]
    columns: KernelCut
    channels: KernelCut
    second: KernelCut
    logits: KernelCut
    strips: int
    domains: int
    mixing: str
    groups: int
    num_means: int
    num_vars: int
    second_affine: str
    pools_columns: bool


class KernelParams(NamedTuple):
    """The parameters or their gradients."""

    weight: Any
    bias: Any
    second_weight: Any
    second_bias: Any
    mean_logits: Any
    var_logits: Any


class KernelActivation(NamedTuple):
    """The activation φ by its name, "none" without one, and the slope of leaky_relu."""

    name: str
    negative_slope: float


NONE = KernelActivation("none", 0.0)


class KernelGradient(NamedTuple):
    """The gradient of y, and the tensor from which φ′(z) is computed: y, or the coefficients of forward (`scale`)."""

    dy: Any
    y: Any = None
    scale: Any = None


@triton.jit
def _tanh_and_slope(z):
    """Return tanh(u) and du/dz with u = √(2/π) (z + 0.044715 z³), of gelu_tanh."""
    u = 0.7978845608028654 * (z + 0.044715 * z * z * z)
    return 2 * tl.sigmoid(2 * u) - 1, 0.7978845608028654 * (1 + 3 * 0.044715 * z * z)


@triton.jit
def _activate(z, ACTIVATION: tl.constexpr):
    """Return φ(z); NaN stays NaN, as in torch."""
    if ACTIVATION.name == "relu":
        return tl.where(z <= 0, 0.0, z)
    elif ACTIVATION.name == "relu6":
        return tl.where(z <= 0, 0.0, tl.where(z >= 6, 6.0, z))
    elif ACTIVATION.name == "leaky_relu":
        return tl.where(z > 0, z, ACTIVATION.negative_slope * z)
    elif ACTIVATION.name == "silu":
        return z * tl.sigmoid(z)
    elif ACTIVATION.name == "gelu":
        return 0.5 * z * (1 + tl.erf(0.7071067811865476 * z))
    elif ACTIVATION.name == "gelu_tanh":
        tanh, slope = _tanh_and_slope(z)
        return 0.5 * z * (1 + tanh)
    elif ACTIVATION.name == "hardswish":
        return z * tl.where(z <= -3, 0.0, tl.where(z >= 3, 6.0, z + 3)) / 6
    else:
        return z


@triton.jit
def _activation_gradient(dy, z, ACTIVATION: tl.constexpr):
    """Return d = dy φ′(z), at kinks and NaN as torch. For relu, relu6 and leaky_relu, z may also be φ(z)."""
    if ACTIVATION.name == "relu":
        return tl.where(z <= 0, 0.0, dy)
    elif ACTIVATION.name == "relu6":
        return tl.where((z <= 0) | (z >= 6), 0.0, dy)
    elif ACTIVATION.name == "leaky_relu":
        return tl.where(z > 0, dy, ACTIVATION.negative_slope * dy)
    elif ACTIVATION.name == "silu":
        sigmoid = tl.sigmoid(z)
        return dy * sigmoid * (1 + z * (1 - sigmoid))
    elif ACTIVATION.name == "gelu":
        density = 0.3989422804014327 * tl.exp(-0.5 * z * z)
        return dy * (0.5 * (1 + tl.erf(0.7071067811865476 * z)) + z * density)
    elif ACTIVATION.name == "gelu_tanh":
        tanh, slope = _tanh_and_slope(z)
        return dy * (0.5 * (1 + tanh) + 0.5 * z * (1 - tanh * tanh) * slope)
    elif ACTIVATION.name == "hardswish":
        return tl.where(z <= -3, 0.0, tl.where(z < 3, dy * (z / 3 + 0.5), dy))
    else:
        return dy


@triton.jit
def _tile(shape, LAYOUT: tl.constexpr):
    """Return the rows of a program and the positions that it reads.

    In this order: the rows; their indices in a table (splits, rows); whether they exist; the offset of the program in x; the
    offsets of the rows relative to it; the step between positions; the first position; the end of the positions; the length.
    """
    pid, c, length = tl.program_id(0), shape.c, shape.length
    if LAYOUT.last:  # channels of one strip
        c = c // LAYOUT.align * LAYOUT.align
        blocks, num_strips = tl.cdiv(c, LAYOUT.rows), shape.n * LAYOUT.strips
        strip, split = pid // blocks % num_strips, pid // blocks // num_strips
        channel = pid % blocks * LAYOUT.rows + tl.arange(0, LAYOUT.rows)
        row = (strip // LAYOUT.strips * c + channel) * LAYOUT.strips + strip % LAYOUT.strips
        exists, first, start, step = channel < c, strip.to(tl.int64) * length * c, channel, c
    else:
        length = length // LAYOUT.align * LAYOUT.align
        blocks, local = tl.cdiv(shape.num_rows, LAYOUT.rows), tl.arange(0, LAYOUT.rows)
        block, split = pid % blocks, pid // blocks
        row = block * LAYOUT.rows + local
        exists, first, start, step = row < shape.num_rows, block.to(tl.int64) * LAYOUT.rows * length, local * length, 1
    begin = split * (shape.chunk // LAYOUT.positions * LAYOUT.positions)
    end = tl.minimum(begin + shape.chunk, length)
    return row, split * shape.num_rows + row, exists, first, start, step, begin, end, length


@triton.jit
def _positions(start, step, at, length, exists, LAYOUT: tl.constexpr):
    """Return the memory offsets of a tile (rows, positions), and its mask."""
    position = at + tl.arange(0, LAYOUT.positions)
    return start[:, None] + position[None, :] * step, exists[:, None] & (position < length)[None, :]


@triton.jit
def _load(pointer, offset, mask):
    return tl.load(pointer + offset, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _load_scale(table, row, exists, shape):
    """Return shift, p and q of each row; 0 without a table."""
    if table is None:
        return 0.0, 0.0, 0.0
    else:
        shift = tl.load(table + row, mask=exists, other=0.0)[:, None]
        p = tl.load(table + shape.num_rows + row, mask=exists, other=0.0)[:, None]
        return shift, p, tl.load(table + 2 * shape.num_rows + row, mask=exists, other=0.0)[:, None]


@triton.jit
def _load_gradient(gradient, values, shift, p, q, offset, mask, ACTIVATION: tl.constexpr):
    """Return d, the gradient of z = p (values − shift) + q."""
    dy = _load(gradient.dy, offset, mask)
    if gradient.y is not None:
        return _activation_gradient(dy, _load(gradient.y, offset, mask), ACTIVATION)
    elif gradient.scale is not None:
        return _activation_gradient(dy, p * (values - shift) + q, ACTIVATION)
    else:
        return dy


@triton.jit
def row_sums(x, gradient, table, dresidual, shape, LAYOUT: tl.constexpr, ACTIVATION: tl.constexpr):
    row, slot, exists, first, start, step, begin, end, length = _tile(shape, LAYOUT)
    z_shift, p, q = _load_scale(None if gradient is None else gradient.scale, row, exists, shape)
    offset, mask = _positions(start, step, begin, length, exists, LAYOUT)
    values = _load(x, first + offset, mask)
    shift = tl.sum(values, 1) / tl.minimum(end - begin, LAYOUT.positions)
    total, product = tl.zeros_like(values), tl.zeros_like(values)
    for at in range(begin, end, LAYOUT.positions):
        offset, mask = _positions(start, step, at, length, exists, LAYOUT)
        values = _load(x, first + offset, mask)
        centered = values - shift[:, None]
        if gradient is None:
            u = tl.where(mask, centered, 0.0)
        else:
            u = _load_gradient(gradient, values, z_shift, p, q, first + offset, mask, ACTIVATION)
            if dresidual is not None:
                tl.store(dresidual + first + offset, u, mask=mask)
        total += u
        product += u * centered
    field = shape.num_splits * shape.num_rows
    tl.store(table + slot, shift, mask=exists)
    tl.store(table + field + slot, tl.sum(total, 1), mask=exists)
    tl.store(table + 2 * field + slot, tl.sum(product, 1), mask=exists)


@triton.jit
def apply(x, residual, gradient, out, table, shape, LAYOUT: tl.constexpr, ACTIVATION: tl.constexpr):
    row, slot, exists, first, start, step, begin, end, length = _tile(shape, LAYOUT)
    shift, p, q = _load_scale(table, row, exists, shape)
    if gradient is not None:
        a = tl.load(table + 3 * shape.num_rows + row, mask=exists, other=0.0)[:, None]
        z_shift, z_p, z_q = _load_scale(gradient.scale, row, exists, shape)
    for at in range(begin, end, LAYOUT.positions):
        offset, mask = _positions(start, step, at, length, exists, LAYOUT)
        values = _load(x, first + offset, mask)
        result = p * (values - shift) + q
        if gradient is not None:
            result += a * _load_gradient(gradient, values, z_shift, z_p, z_q, first + offset, mask, ACTIVATION)
        else:
            if residual is not None:
                result += _load(residual, first + offset, mask)
            result = _activate(result, ACTIVATION)
        tl.store(out + first + offset, result, mask=mask)


@triton.jit
def _size(shape, CUT: tl.constexpr, NORM: tl.constexpr):
    """Return the number of rows and columns of the table of a cut, and the number of columns of x per part."""
    channels = CUT.channels if CUT.channels else shape.c
    rows = shape.n // CUT.samples_per_part if CUT.samples_per_part else max(NORM.domains, 1)
    return rows, channels * CUT.strips, (shape.c // channels) * (NORM.strips // CUT.strips)


@triton.jit
def _members(at, num, part, width, c, CUT: tl.constexpr, STRIPS: tl.constexpr):
    """Return the row, channel and column of the next members of each part, and whether they exist.

    The members of a part are the entries that belong to it in `num` rows of c · STRIPS columns.
    """
    channels, strips = c // CUT.channels if CUT.channels else 1, STRIPS // CUT.strips
    m, part = at + tl.arange(0, CUT.members)[None, :], part[:, None]
    channel = part // CUT.strips * channels + m // strips % channels
    column = channel * STRIPS + part % CUT.strips * strips + m % strips
    return m // (channels * strips), channel, column, (m < num * channels * strips) & (part < width)


@triton.jit
def _pool(table, field, first, num, labels, label, part, width, shape, c, count, CUT: tl.constexpr, NORM: tl.constexpr):
    """Return the mean, variance and number of values of parts, pooled over `num` rows of a table.

    The table has the sums of `row_sums` of each split if `count` is None, otherwise moments of `count` values each. The moments
    that are returned are about zero if the norm has no mean.
    """
    num_tables = num * (shape.num_splits if count is None else 1)
    num_members = num_tables * (c // CUT.channels if CUT.channels else 1) * (NORM.strips // CUT.strips)
    mean, m2, total = part.to(tl.float64) * 0, part.to(tl.float64) * 0, part.to(tl.float64) * 0
    for at in range(0, num_members, CUT.members):
        row, channel, column, keep = _members(at, num_tables, part, width, c, CUT, NORM.strips)
        split, row = row // num, row % num
        if labels is not None:
            keep = keep & (tl.load(labels + first + row, mask=keep, other=-1) == label)
        slot = table + split * shape.num_rows + (first + row) * c * NORM.strips + column
        means = tl.load(slot, mask=keep, other=0.0).to(tl.float64)
        variances = tl.load(slot + field, mask=keep, other=0.0).to(tl.float64)
        values = count
        if count is None:
            values = tl.where(keep, tl.minimum(shape.chunk, shape.length - split * shape.chunk), 1).to(tl.float64)
            distance = variances / values
            variances = tl.load(slot + 2 * field, mask=keep, other=0.0) / values - distance * distance
            means, variances = means + distance, tl.where(variances < 0, 0.0, variances)
        weight = tl.where(keep, values, 0.0)
        size = tl.sum(weight, 1)
        middle = tl.sum(weight * means, 1) / tl.where(size > 0, size, 1.0)
        distance = tl.where(keep, means - middle[:, None], 0.0)
        new = total + size
        share = size / tl.where(new > 0, new, 1.0)
        m2 += tl.sum(weight * (variances + distance * distance), 1) + (middle - mean) * (middle - mean) * total * share
        mean += (middle - mean) * share
        total = new
    var = m2 / tl.where(total > 0, total, 1.0)
    if NORM.num_means == 0:
        mean, var = mean * 0, var + mean * mean
    return mean, var, total


@triton.jit
def _pool_rows(pid, table, out, field, counts, labels, rows, width, shape, CUT: tl.constexpr, NORM: tl.constexpr):
    """Compute the statistics of a cut from the rows, if `pid` is one of the rows · blocks programs of this task.

    Returns the index of the program relative to the next task; it is negative if the program had this task or an earlier one.
    """
    blocks = tl.cdiv(width, CUT.parts)
    if (pid >= 0) & (pid < rows * blocks):
        row, part = pid // blocks, pid % blocks * CUT.parts + tl.arange(0, CUT.parts)
        first, num = row * CUT.samples_per_part, CUT.samples_per_part if CUT.samples_per_part else shape.n
        mean, var, count = _pool(
            table, shape.num_splits * shape.num_rows, first, num, labels, row, part, width, shape, shape.c, None, CUT, NORM
        )
        tl.store(out + row * width + part, mean, mask=part < width)
        tl.store(out + field + row * width + part, var, mask=part < width)
        if counts is not None:
            tl.store(counts + row + part, count, mask=part == 0)
    return pid - rows * blocks


@triton.jit
def pool_rows(table, columns, counts, stats, labels, shape, NORM: tl.constexpr):
    pid, width, domains, offset = tl.program_id(0), shape.c * NORM.strips, max(NORM.domains, 1), 0
    if NORM.pools_columns:
        domain = labels if NORM.domains else None
        pid = _pool_rows(pid, table, columns, domains * width, counts, domain, domains, width, shape, NORM.columns, NORM)
    for k in tl.static_range(len(NORM.cuts)):
        rows, width, per_part = _size(shape, NORM.cuts[k], NORM)
        if NORM.cuts[k].samples_per_part:
            slot = stats + offset
            pid = _pool_rows(pid, table, slot, shape.num_stats, None, None, rows, width, shape, NORM.cuts[k], NORM)
        offset += rows * width


@triton.jit
def _read(running, slot, mask):
    """Load running statistics; return 0 if there is no buffer."""
    if running is None:
        return slot.to(tl.float64) * 0
    else:
        return tl.load(running + slot, mask=mask, other=0.0).to(tl.float64)


@triton.jit
def _store(pointer, value, mask):
    """Store float64 values; in bfloat16 by way of float32, since the interpreter has no conversion from float64."""
    if pointer.dtype.element_ty == tl.bfloat16:
        value = value.to(tl.float32)
    tl.store(pointer, value, mask=mask)


@triton.jit
def _update(running, slot, new, momentum, largest, mask):
    """Update running statistics by finite values: s ← (1 − momentum) s + momentum new, as `Running` in `core/update_rules.py`."""
    if running is not None:
        mask = mask & (tl.abs(new) <= largest)
        _store(running + slot, (1 - momentum) * _read(running, slot, mask) + momentum * new, mask)


@triton.jit
def _count_not_finite(table, field, size, largest):
    """Return how many of `size` means and variances of a table are not finite, that is, not at most `largest`."""
    local, total = tl.arange(0, 512), 0
    for at in range(0, size, 512):
        mask = at + local < size
        mean = tl.load(table + at + local, mask=mask, other=0.0)
        var = tl.load(table + field + at + local, mask=mask, other=0.0)
        total += tl.sum(tl.where((tl.abs(mean) <= largest) & (tl.abs(var) <= largest), 0, 1))
    return total


@triton.jit
def _num_not_finite(columns, stats, domain, largest, shape, NORM: tl.constexpr):
    """Return how many batch statistics of a domain are not finite, of those that update running statistics of any cut."""
    width, total, offset = shape.c * NORM.strips, 0, 0
    if NORM.pools_columns:
        total += _count_not_finite(columns + domain * width, max(NORM.domains, 1) * width, width, largest)
    for k in tl.static_range(len(NORM.cuts)):
        rows, per_row, per_part = _size(shape, NORM.cuts[k], NORM)
        if NORM.cuts[k].samples_per_part > 1:
            total += _count_not_finite(stats + offset, shape.num_stats, rows * per_row, largest)
        offset += rows * per_row
    return total


@triton.jit
def _average(table, field, num, part, width):
    """Return the means and variances of a table of statistics, averaged over its `num` rows."""
    mean, var = part.to(tl.float64) * 0, part.to(tl.float64) * 0
    for row in range(num):
        mean += tl.load(table + row * width + part, mask=part < width, other=0.0) / num
        var += tl.load(table + field + row * width + part, mask=part < width, other=0.0) / num
    return mean, var


@triton.jit
def _pool_columns(
    pid, columns, counts, stats, all_stats, running_mean, running_var, momentum, largest, shape,
    CUT: tl.constexpr, NORM: tl.constexpr, UPDATE: tl.constexpr,
):  # fmt: skip
    """Compute or load the statistics of a cut that pools samples, and update its running statistics.

    `pid` and the returned value are as in `_pool_rows`.
    """
    rows, width, per_part = _size(shape, CUT, NORM)
    blocks, domains = tl.cdiv(width, CUT.parts), max(NORM.domains, 1)
    if (pid >= 0) & (pid < domains * blocks):
        domain, part = pid // blocks, pid % blocks * CUT.parts + tl.arange(0, CUT.parts)
        slot, mask = domain * width + part, part < width
        if not CUT.uses_batch:
            mean, var = _read(running_mean, slot, mask), _read(running_var, slot, mask)
        elif CUT.samples_per_part:  # parts of several samples
            mean, var = _average(stats, shape.num_stats, rows, part, width)
            count = part.to(tl.float64) * 0 + CUT.samples_per_part * per_part * shape.length
        else:
            values = tl.load(counts + domain)
            field = domains * shape.c * NORM.strips
            mean, var, count = _pool(columns, field, domain, 1, None, 0, part, width, shape, shape.c, values, CUT, NORM)
        if not CUT.samples_per_part:
            tl.store(stats + slot, mean, mask=mask)
            tl.store(stats + shape.num_stats + slot, var, mask=mask)
        if UPDATE and CUT.uses_batch:
            unbiased = var
            if NORM.num_means:  # otherwise, the mean is not estimated
                unbiased = var * tl.where(count > 1, count, 1.0) / tl.where(count > 2, count - 1, 1.0)
            bad = part * 0 + _num_not_finite(columns, all_stats, domain, largest, shape, NORM)  # a block, as the other conditions
            mask = mask & (count > 0) & (bad == 0)
            _update(running_mean, slot, mean, momentum, largest, mask)
            _update(running_var, slot, unbiased, momentum, largest, mask)
    return pid - domains * blocks


@triton.jit
def _count(counter, domain, condition):
    """Increment the counter of a domain if a condition is met."""
    if counter is not None:
        tl.store(counter + domain, tl.load(counter + domain) + condition.to(tl.int64))


@triton.jit
def pool_columns(
    columns, counts, stats, running, num_batches, num_skipped, momentum, largest, shape, NORM: tl.constexpr, UPDATE: tl.constexpr
):
    pid, offset = tl.program_id(0), 0
    if UPDATE:
        if pid < max(NORM.domains, 1):
            present, finite = pid == pid, _num_not_finite(columns, stats, pid, largest, shape, NORM) == 0
            if NORM.pools_columns:
                present = tl.load(counts + pid) > 0
            _count(num_batches, pid, present & finite)
            _count(num_skipped, pid, present & (finite == 0))
    for k in tl.static_range(len(NORM.cuts)):
        rows, width, per_part = _size(shape, NORM.cuts[k], NORM)
        if NORM.cuts[k].samples_per_part != 1:
            slot, mean, var = stats + offset, running[2 * k], running[2 * k + 1]
            pid = _pool_columns(
                pid, columns, counts, slot, stats, mean, var, momentum, largest, shape, NORM.cuts[k], NORM, UPDATE
            )
        offset += rows * width


@triton.jit
def _weight(logits, group, INDEX: tl.constexpr, NUM: tl.constexpr, NORM: tl.constexpr):
    """Return the mixing weights of the cut INDEX in each channel group."""
    if logits is None:
        return 1.0
    else:
        own = tl.load(logits + group * NUM + INDEX).to(tl.float64)
        weight = own
        if NORM.mixing == "softmax":
            top, total = own, own * 0
            for k in tl.static_range(NUM):
                top = tl.maximum(top, tl.load(logits + group * NUM + k).to(tl.float64), propagate_nan=tl.PropagateNan.ALL)
            for k in tl.static_range(NUM):
                total += tl.exp(tl.load(logits + group * NUM + k).to(tl.float64) - top)
            weight = tl.exp(own - top) / total
        elif NORM.mixing == "argmax":  # ties go to the first cut
            weight = own * 0 + 1
            for k in tl.static_range(NUM):
                other = tl.load(logits + group * NUM + k).to(tl.float64)
                weight = tl.where(other >= own if k < INDEX else other > own, 0.0, weight)
        return weight


@triton.jit
def _slot(sample, channel, strip, label, shape, K: tl.constexpr, NORM: tl.constexpr):
    """Return, for each row, the index of the statistic of cut K in the table of all statistics."""
    CUT: tl.constexpr = NORM.cuts[K]
    offset = 0
    for k in tl.static_range(K):
        rows, width, per_part = _size(shape, NORM.cuts[k], NORM)
        offset += rows * width
    rows, width, per_part = _size(shape, CUT, NORM)
    row = sample // CUT.samples_per_part if CUT.samples_per_part else (label if NORM.domains else label * 0)
    channels, strips = shape.c // CUT.channels if CUT.channels else 1, NORM.strips // CUT.strips
    return offset + row * width + channel // channels * CUT.strips + strip // strips


@triton.jit
def _mix(mixed, value, logits, group, INDEX: tl.constexpr, NUM: tl.constexpr, NORM: tl.constexpr):
    """Add the weighted statistics of one more cut to the mixed statistics; a weight of 0 discards NaN too."""
    if INDEX >= 0:
        weight = _weight(logits, group, INDEX, NUM, NORM)
        mixed += tl.where(weight == 0, 0.0, weight * value)
    return mixed


@triton.jit
def _affine(weight, bias, slot, mask):
    """Load γ and β; return 1 and 0 without an affine, β = 0 without a bias."""
    if weight is None:
        return 1.0, 0.0
    elif bias is None:
        return tl.load(weight + slot, mask=mask, other=0.0).to(tl.float64), 0.0
    else:
        gamma, beta = tl.load(weight + slot, mask=mask, other=0.0), tl.load(bias + slot, mask=mask, other=0.0)
        return gamma.to(tl.float64), beta.to(tl.float64)


@triton.jit
def _row(row, mask, stats, labels, params, shape, eps, NORM: tl.constexpr):
    """Return, for each row: sample, channel, strip, label, mean, variance, 1/sqrt(var + ε), and γ, β of both affine stages."""
    strip, channel, sample = row % NORM.strips, row // NORM.strips % shape.c, row // NORM.strips // shape.c
    label = sample * 0
    if labels is not None:
        label = tl.load(labels + sample, mask=mask, other=0).to(tl.int32)
    mean, var, group = row.to(tl.float64) * 0, row.to(tl.float64) * 0, channel // (shape.c // NORM.groups)
    for k in tl.static_range(len(NORM.cuts)):
        slot = stats + _slot(sample, channel, strip, label, shape, k, NORM)
        value, value_var = tl.load(slot, mask=mask, other=0.0), tl.load(slot + shape.num_stats, mask=mask, other=0.0)
        mean = _mix(mean, value, params.mean_logits, group, NORM.cuts[k].mean, NORM.num_means, NORM)
        var = _mix(var, value_var, params.var_logits, group, NORM.cuts[k].var, NORM.num_vars, NORM)
    gamma, beta = _affine(params.weight, params.bias, channel, mask)
    own = label if NORM.second_affine == "class" else (sample if NORM.second_affine == "sample" else label * 0)
    second_gamma, second_beta = _affine(params.second_weight, params.second_bias, own * shape.c + channel, mask)
    return sample, channel, strip, label, mean, var, 1 / tl.sqrt(var + eps), gamma, beta, second_gamma, second_beta


@triton.jit
def coefficients(stats, grads, counts, labels, params, table, eps, shape, NORM: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask, zero = row < shape.num_rows, row.to(tl.float64) * 0
    sample, channel, strip, label, mean, var, r, gamma, beta, second_gamma, second_beta = _row(
        row, mask, stats, labels, params, shape, eps, NORM
    )
    shift, a = mean.to(tl.float32).to(tl.float64), gamma * second_gamma * r
    p, q = a, second_gamma * beta + second_beta + a * (shift - mean)
    if grads is not None:
        p, q, size, moment = zero, zero, zero, zero
        for k in tl.static_range(len(NORM.cuts)):
            if NORM.cuts[k].uses_batch:
                rows, width, per_part = _size(shape, NORM.cuts[k], NORM)
                slot = _slot(sample, channel, strip, label, shape, k, NORM)
                if NORM.cuts[k].samples_per_part:
                    count = zero + NORM.cuts[k].samples_per_part * per_part * shape.length
                else:
                    count = tl.load(counts + (label if NORM.domains else label * 0), mask=mask, other=1.0) * per_part
                slope = 2 * tl.load(grads + shape.num_stats + slot, mask=mask, other=0.0) / count
                p += slope
                q += tl.load(grads + slot, mask=mask, other=0.0) / count
                size += tl.abs(slope)
                moment += tl.where(slope == 0, 0.0, slope * tl.load(stats + slot, mask=mask, other=0.0))
        # The shift is the mean of M weighted by the slopes, since a part with a single value has a huge slope, and x − M = 0.
        shift = tl.where(tl.abs(p) > size / 2, moment / tl.where(p == 0, 1.0, p), mean).to(tl.float32).to(tl.float64)
        q += p * shift - moment
        tl.store(table + 3 * shape.num_rows + row, a, mask=mask)
    tl.store(table + row, shift, mask=mask)
    tl.store(table + shape.num_rows + row, p, mask=mask)
    tl.store(table + 2 * shape.num_rows + row, q, mask=mask)


@triton.jit
def _add(quantities, index, values):
    """Sum values (columns, samples) over samples and add the sums to the row `index` of a table (quantities, columns)."""
    here = tl.arange(0, quantities.shape[0])[:, None] == index
    return quantities + tl.where(here, tl.sum(values, 1)[None, :], 0.0)


@triton.jit
def _add_logit(
    quantities, value, mixed, grad, mask, logits, group, FIRST: tl.constexpr, INDEX: tl.constexpr, NUM: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """Add the gradient of the λ of one cut to the table of quantities; `grad` is the gradient of the mixed statistic."""
    if INDEX >= 0 and logits is not None:
        if NORM.mixing == "softmax":  # Σ w = 1
            value = (value - mixed) * _weight(logits, group, INDEX, NUM, NORM)
        quantities = _add(quantities, FIRST + INDEX, tl.where(mask, value * grad, 0.0))
    return quantities


@triton.jit
def gradients(
    sums, stats, labels, params, rows, columns, eps, shape,
    NORM: tl.constexpr, KEEP: tl.constexpr, QUANTITIES: tl.constexpr, SAMPLES: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    num_columns, num_rows, field = shape.c * NORM.strips, shape.num_rows, shape.num_splits * shape.num_rows
    column = tl.program_id(0) * NORM.columns.parts + tl.arange(0, NORM.columns.parts)
    total = (tl.arange(0, QUANTITIES)[:, None] + column[None, :]).to(tl.float64) * 0
    for at in range(0, shape.n, SAMPLES):
        samples = at + tl.arange(0, SAMPLES)[None, :]
        mask, row = (column < num_columns)[:, None] & (samples < shape.n), samples * num_columns + column[:, None]
        sample, channel, strip, label, mean, var, r, gamma, beta, second_gamma, second_beta = _row(
            row, mask, stats, labels, params, shape, eps, NORM
        )
        g, t = row.to(tl.float64) * 0, row.to(tl.float64) * 0
        for first in range(0, shape.num_splits, SPLITS):
            split = first + tl.arange(0, SPLITS)[None, None, :]
            slot, present = sums + split * num_rows + row[:, :, None], mask[:, :, None] & (split < shape.num_splits)
            part = tl.load(slot + field, mask=present, other=0.0).to(tl.float64)
            distance = tl.load(slot, mask=present, other=0.0) - mean[:, :, None]
            g += tl.sum(part, 2)
            t += tl.sum(tl.load(slot + 2 * field, mask=present, other=0.0) + part * distance, 2)
        t = tl.where(mask, r * t, 0.0)  # Σ d (x − mean) r
        dmean = tl.where(mask, -gamma * second_gamma * r * g, 0.0)
        dvar = tl.where(mask, -gamma * second_gamma * r * r * t / 2, 0.0)
        total = _add(_add(_add(_add(total, 0, dmean), 1, dvar), 2, second_gamma * t), 3, second_gamma * g)
        group = channel // (shape.c // NORM.groups)
        for k in tl.static_range(len(NORM.cuts)):
            slot = stats + _slot(sample, channel, strip, label, shape, k, NORM)
            value, value_var = tl.load(slot, mask=mask, other=0.0), tl.load(slot + shape.num_stats, mask=mask, other=0.0)
            total = _add_logit(
                total, value, mean, dmean, mask, params.mean_logits, group, 4, NORM.cuts[k].mean, NORM.num_means, NORM
            )
            total = _add_logit(
                total, value_var, var, dvar, mask, params.var_logits, group, 4 + NORM.num_means, NORM.cuts[k].var,
                NORM.num_vars, NORM,
            )  # fmt: skip
        if KEEP:
            tl.store(rows + row, dmean, mask=mask)
            tl.store(rows + num_rows + row, dvar, mask=mask)
        if params.second_weight is not None:
            tl.store(rows + 2 * num_rows + row, gamma * t + beta * g, mask=mask)
            tl.store(rows + 3 * num_rows + row, g, mask=mask)
    slot = columns + tl.arange(0, QUANTITIES)[:, None] * num_columns + column[None, :]
    tl.store(slot, total, mask=(column < num_columns)[None, :])


@triton.jit
def _reduce(
    pid, table, out, rows, width, num, labels, logits, shape,
    CUT: tl.constexpr, INDEX: tl.constexpr, NUM: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Sum the entries of each part of a table, multiplied by the mixing weights of the cut INDEX; 0 if INDEX is negative.

    `pid` and the returned value are as in `_pool_rows`.
    """
    blocks = tl.cdiv(width, CUT.parts)
    if (pid >= 0) & (pid < rows * blocks):
        row, part = pid // blocks, pid % blocks * CUT.parts + tl.arange(0, CUT.parts)
        total, first = part.to(tl.float64) * 0, row * CUT.samples_per_part
        num_members = num * (shape.c // CUT.channels if CUT.channels else 1) * (NORM.strips // CUT.strips)
        for at in range(0, 0 if INDEX < 0 or out is None else num_members, CUT.members):
            member, channel, column, keep = _members(at, num, part, width, shape.c, CUT, NORM.strips)
            if labels is not None:
                keep = keep & (tl.load(labels + member, mask=keep, other=-1) == row)
            values = tl.load(table + (first + member) * shape.c * NORM.strips + column, mask=keep, other=0.0).to(tl.float64)
            weight = _weight(logits, tl.where(keep, channel, 0) // (shape.c // NORM.groups), INDEX, NUM, NORM)
            total += tl.sum(tl.where(weight == 0, 0.0, weight * values), 1)
        if out is not None:
            _store(out + row * width + part, total, part < width)
    return pid - rows * blocks


@triton.jit
def reduce(rows, columns, grads, labels, params, dparams, shape, num_second, NORM: tl.constexpr):
    pid, c, num_columns, num_rows, offset = tl.program_id(0), shape.c, shape.c * NORM.strips, shape.num_rows, 0
    for k in tl.static_range(len(NORM.cuts)):
        size, width, per_part = _size(shape, NORM.cuts[k], NORM)
        if NORM.cuts[k].uses_batch:
            mean, var, num, domains = columns, columns + num_columns, 1, None
            if NORM.cuts[k].samples_per_part:
                mean, var, num = rows, rows + num_rows, NORM.cuts[k].samples_per_part
            elif NORM.domains:
                mean, var, num, domains = rows, rows + num_rows, shape.n, labels
            out, logits = grads + offset, params.mean_logits
            pid = _reduce(
                pid, mean, out, size, width, num, domains, logits, shape, NORM.cuts[k], NORM.cuts[k].mean, NORM.num_means, NORM
            )
            out, logits = out + shape.num_stats, params.var_logits
            pid = _reduce(
                pid, var, out, size, width, num, domains, logits, shape, NORM.cuts[k], NORM.cuts[k].var, NORM.num_vars, NORM
            )
        offset += size * width
    pid = _reduce(pid, columns + 2 * num_columns, dparams.weight, 1, c, 1, None, None, shape, NORM.channels, 0, 1, NORM)
    pid = _reduce(pid, columns + 3 * num_columns, dparams.bias, 1, c, 1, None, None, shape, NORM.channels, 0, 1, NORM)
    num, classes = (
        NORM.second.samples_per_part if NORM.second.samples_per_part else shape.n,
        labels if NORM.second_affine == "class" else None,
    )
    slot = rows + 2 * num_rows
    pid = _reduce(pid, slot, dparams.second_weight, num_second, c, num, classes, None, shape, NORM.second, 0, 1, NORM)
    pid = _reduce(pid, slot + num_rows, dparams.second_bias, num_second, c, num, classes, None, shape, NORM.second, 0, 1, NORM)
    slot = columns + 4 * num_columns
    pid = _reduce(pid, slot, dparams.mean_logits, NORM.num_means, NORM.groups, 1, None, None, shape, NORM.logits, 0, 1, NORM)
    slot += NORM.num_means * num_columns
    pid = _reduce(pid, slot, dparams.var_logits, NORM.num_vars, NORM.groups, 1, None, None, shape, NORM.logits, 0, 1, NORM)
