"""The Triton kernels: two passes over x forward, two over x and dy backward, and between them passes over small tables.

x is seen as rows (sample, channel, strip) of `length` positions: row = (sample · c + channel) · strips + strip.

    row_sums       k = mean of the first tile, Σ u, Σ u (x − k) of each row, with u = x − k forward and u = dy backward
    pool_rows      forward: moments of each column (channel, strip) per domain; statistics of cuts that keep samples apart
    pool_columns   forward: statistics of cuts that pool samples, from the columns or the running statistics, which are updated
    gradients      backward: dmean = −a Σ dy, dvar = −a r² Σ dy (x − mean) / 2, gradients of affine and λ, summed over samples
    reduce         backward: dM = Σ w dmean, dV = Σ w′ dvar of each part of a cut; the gradients of the parameters
    coefficients   forward: p = a, q = b + a (shift − mean);
                   backward: p = Σ 2 dV / count, q = p shift + Σ (dM − 2 dV M) / count, over the cuts that use the batch
    apply          forward: y = p (x − shift) + q; backward: dx = a dy + p (x − shift) + q

Tables of rows are float32, the others float64. Grids depend on shapes only.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import triton
import triton.language as tl

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether the kernels run in Triton's interpreter, on CPU tensors."""


class Layout(NamedTuple):
    """Whether x is channels_last, a divisor of its contiguous axis, and a tile (rows, positions)."""

    last: bool
    align: int
    strips: int
    rows: int
    positions: int


class Cut(NamedTuple):
    """Samples per part (0: all of them, or running statistics), parts of channels (0: all) and strips, the index among the cuts
    of the mean and of the variance (−1: none), and a tile (parts, members).
    """

    samples: int
    channels: int
    strips: int
    uses_batch: bool
    mean: int
    var: int
    parts: int
    members: int


class Norm(NamedTuple):
    """What the kernels need to know of a norm. The row of the second affine is the "class", the "sample", or "first"."""

    cuts: tuple[Cut, ...]
    strips: int
    domains: int
    mixing: str
    groups: int
    num_means: int
    num_vars: int
    second_affine: str
    pools_columns: bool


class Params(NamedTuple):
    """The parameters or their gradients."""

    weight: Any
    bias: Any
    second_weight: Any
    second_bias: Any
    mean_logits: Any
    var_logits: Any


@triton.jit
def _tile(num_rows, c, length, tiles, LAYOUT: tl.constexpr):
    """Return of a program: its rows, their slots in a table (splits, rows), which exist, where they start, positions, step."""
    pid = tl.program_id(0)
    if LAYOUT.last:  # channels of one strip
        c = c // LAYOUT.align * LAYOUT.align
        blocks = tl.cdiv(c, LAYOUT.rows)
        strip, split = pid // blocks % (num_rows // c), pid // blocks // (num_rows // c)
        channel = pid % blocks * LAYOUT.rows + tl.arange(0, LAYOUT.rows)
        row = (strip // LAYOUT.strips * c + channel) * LAYOUT.strips + strip % LAYOUT.strips
        exists, first, start, step = channel < c, strip.to(tl.int64) * length * c, channel, c
    else:
        length = length // LAYOUT.align * LAYOUT.align
        blocks = tl.cdiv(num_rows, LAYOUT.rows)
        local, split = tl.arange(0, LAYOUT.rows), pid // blocks
        row = pid % blocks * LAYOUT.rows + local
        exists, first, start, step = row < num_rows, (pid % blocks).to(tl.int64) * LAYOUT.rows * length, local * length, 1
    begin = split * tiles * LAYOUT.positions
    end = tl.minimum(begin + tiles * LAYOUT.positions, length)
    return row, split * num_rows + row, exists, first, start, step, begin, end, length


@triton.jit
def _positions(start, step, at, length, exists, LAYOUT: tl.constexpr):
    """Return the offsets of a tile (rows, positions) and its mask."""
    position = at + tl.arange(0, LAYOUT.positions)
    return start[:, None] + position[None, :] * step, exists[:, None] & (position < length)[None, :]


@triton.jit
def row_sums(x, dy, table, num_rows, c, length, tiles, num_splits, LAYOUT: tl.constexpr):
    row, slot, exists, first, start, step, begin, end, length = _tile(num_rows, c, length, tiles, LAYOUT)
    offset, mask = _positions(start, step, begin, length, exists, LAYOUT)
    values = tl.load(x + first + offset, mask=mask, other=0.0).to(tl.float32)
    shift = tl.sum(values, 1) / tl.minimum(end - begin, LAYOUT.positions)
    total = tl.zeros([LAYOUT.rows, LAYOUT.positions], tl.float32)
    product = tl.zeros([LAYOUT.rows, LAYOUT.positions], tl.float32)
    for at in range(begin, end, LAYOUT.positions):
        offset, mask = _positions(start, step, at, length, exists, LAYOUT)
        centered = tl.load(x + first + offset, mask=mask, other=0.0).to(tl.float32) - shift[:, None]
        if dy is None:
            u = tl.where(mask, centered, 0.0)
        else:
            u = tl.load(dy + first + offset, mask=mask, other=0.0).to(tl.float32)
        total += u
        product += u * centered
    field = num_splits * num_rows
    tl.store(table + slot, shift, mask=exists)
    tl.store(table + field + slot, tl.sum(total, 1), mask=exists)
    tl.store(table + 2 * field + slot, tl.sum(product, 1), mask=exists)


@triton.jit
def apply(x, dy, out, table, num_rows, c, length, tiles, LAYOUT: tl.constexpr):
    row, slot, exists, first, start, step, begin, end, length = _tile(num_rows, c, length, tiles, LAYOUT)
    shift = tl.load(table + row, mask=exists, other=0.0)[:, None]
    p = tl.load(table + num_rows + row, mask=exists, other=0.0)[:, None]
    q = tl.load(table + 2 * num_rows + row, mask=exists, other=0.0)[:, None]
    a = q if dy is None else tl.load(table + 3 * num_rows + row, mask=exists, other=0.0)[:, None]
    for at in range(begin, end, LAYOUT.positions):
        offset, mask = _positions(start, step, at, length, exists, LAYOUT)
        result = p * (tl.load(x + first + offset, mask=mask, other=0.0).to(tl.float32) - shift) + q
        if dy is not None:
            result += a * tl.load(dy + first + offset, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + first + offset, result, mask=mask)


@triton.jit
def _size(n, c, CUT: tl.constexpr, NORM: tl.constexpr):
    """Return the numbers of rows and columns of a cut's table, and the number of columns of x per part."""
    channels = CUT.channels if CUT.channels else c
    rows = n // CUT.samples if CUT.samples else max(NORM.domains, 1)
    return rows, channels * CUT.strips, (c // channels) * (NORM.strips // CUT.strips)


@triton.jit
def _members(at, num, part, width, c, CHANNELS: tl.constexpr, PARTS: tl.constexpr, STRIPS: tl.constexpr, MEMBERS: tl.constexpr):
    """Return row, channel and column of the next members of parts, of `num` rows of c · STRIPS columns, and which exist."""
    channels, strips = c // CHANNELS if CHANNELS else 1, STRIPS // PARTS
    m, part = at + tl.arange(0, MEMBERS)[None, :], part[:, None]
    channel = part // PARTS * channels + m // strips % channels
    column = channel * STRIPS + part % PARTS * strips + m % strips
    return m // (channels * strips), channel, column, (m < num * channels * strips) & (part < width)


@triton.jit
def _pool(
    table, field, first, num, labels, label, part, width, c, length, chunk, num_splits, num_rows,
    CHANNELS: tl.constexpr, PARTS: tl.constexpr, STRIPS: tl.constexpr, MEMBERS: tl.constexpr, BETWEEN: tl.constexpr,
):  # fmt: skip
    """Return mean, variance and number of values of parts, from `num` rows of a table of sums (float32) or moments (float64).

    Without BETWEEN, the variance is the average of the members' variances.
    """
    num_members = num * (c // CHANNELS if CHANNELS else 1) * (STRIPS // PARTS)
    mean, m2, total = part.to(tl.float64) * 0, part.to(tl.float64) * 0, part.to(tl.float64) * 0
    for split in range(num_splits):
        weight = tl.minimum(chunk, length - split * chunk).to(tl.float64)
        for at in range(0, num_members, MEMBERS):
            row, _, column, keep = _members(at, num, part, width, c, CHANNELS, PARTS, STRIPS, MEMBERS)
            if labels is not None:
                keep = keep & (tl.load(labels + first + row, mask=keep, other=-1) == label)
            slot = table + split * num_rows + (first + row) * c * STRIPS + column
            means = tl.load(slot, mask=keep, other=0.0).to(tl.float64)
            variances = tl.load(slot + field, mask=keep, other=0.0).to(tl.float64)
            if table.dtype.element_ty == tl.float32:
                distance = variances / weight
                variances = tl.load(slot + 2 * field, mask=keep, other=0.0) / weight - distance * distance
                means, variances = means + distance, tl.where(variances < 0, 0.0, variances)
            count = tl.sum(keep.to(tl.float64), 1)
            middle = tl.sum(means, 1) / tl.where(count > 0, count, 1.0)
            new = total + count * weight
            share = count * weight / tl.where(new > 0, new, 1.0)
            if BETWEEN:
                distance = tl.where(keep, means - middle[:, None], 0.0)
                variances += distance * distance
                m2 += (middle - mean) * (middle - mean) * total * share
            m2 += tl.sum(variances, 1) * weight
            mean += (middle - mean) * share
            total = new
    return mean, m2 / tl.where(total > 0, total, 1.0), total


@triton.jit
def _pool_rows(
    pid, table, out, field, counts, labels, rows, width, n, c, length, chunk, num_splits, SAMPLES: tl.constexpr,
    CHANNELS: tl.constexpr, STRIPS: tl.constexpr, ALL_STRIPS: tl.constexpr, PARTS: tl.constexpr, MEMBERS: tl.constexpr,
):  # fmt: skip
    """Pool the rows of each of `rows` groups of SAMPLES samples, or of each label or of all of them, if this is our job."""
    blocks, num_rows = tl.cdiv(width, PARTS), n * c * ALL_STRIPS
    if (pid >= 0) & (pid < rows * blocks):
        row, part = pid // blocks, pid % blocks * PARTS + tl.arange(0, PARTS)
        mean, var, count = _pool(
            table, num_splits * num_rows, row * SAMPLES, SAMPLES if SAMPLES else n, labels, row, part, width, c, length, chunk,
            num_splits, num_rows, CHANNELS, STRIPS, ALL_STRIPS, MEMBERS, True,
        )  # fmt: skip
        tl.store(out + row * width + part, mean, mask=part < width)
        tl.store(out + field + row * width + part, var, mask=part < width)
        if counts is not None:
            tl.store(counts + row + part, count, mask=part == 0)


@triton.jit
def pool_rows(
    table, columns, counts, stats, labels, n, c, length, chunk, num_splits, num_stats,
    NORM: tl.constexpr, PARTS: tl.constexpr, MEMBERS: tl.constexpr,
):  # fmt: skip
    pid, width, domains, offset = tl.program_id(0), c * NORM.strips, max(NORM.domains, 1), 0
    if NORM.pools_columns:
        _pool_rows(
            pid, table, columns, domains * width, counts, labels if NORM.domains else None, domains, width, n, c, length, chunk,
            num_splits, 0, 0, NORM.strips, NORM.strips, PARTS, MEMBERS,
        )  # fmt: skip
        pid -= domains * tl.cdiv(width, PARTS)
    for k in tl.static_range(len(NORM.cuts)):
        rows, width, per_part = _size(n, c, NORM.cuts[k], NORM)
        if NORM.cuts[k].samples:
            _pool_rows(
                pid, table, stats + offset, num_stats, None, None, rows, width, n, c, length, chunk,
                num_splits, NORM.cuts[k].samples, NORM.cuts[k].channels, NORM.cuts[k].strips, NORM.strips, NORM.cuts[k].parts, NORM.cuts[k].members,
            )  # fmt: skip
            pid -= rows * tl.cdiv(width, NORM.cuts[k].parts)
        offset += rows * width


@triton.jit
def _read(running, slot, mask):
    """Return running statistics; those that the norm does not use read 0."""
    if running is None:
        return slot.to(tl.float64) * 0
    else:
        return tl.load(running + slot, mask=mask, other=0.0).to(tl.float64)


@triton.jit
def _update(running, slot, new, momentum, mask):
    """Update running statistics: s ← (1 − momentum) s + momentum new."""
    if running is not None:
        tl.store(running + slot, (1 - momentum) * _read(running, slot, mask) + momentum * new, mask=mask)


@triton.jit
def _pool_columns(
    pid, columns, counts, stats, num_stats, running_mean, running_var, n, c, length, momentum,
    CUT: tl.constexpr, NORM: tl.constexpr, UPDATE: tl.constexpr, PARTS: tl.constexpr, MEMBERS: tl.constexpr,
):  # fmt: skip
    """Compute or read the statistics of a cut that pools samples, and update its running statistics, if this is our job."""
    rows, width, per_part = _size(n, c, CUT, NORM)
    blocks, domains = tl.cdiv(width, PARTS), max(NORM.domains, 1)
    if (pid >= 0) & (pid < domains * blocks):
        domain, part = pid // blocks, pid % blocks * PARTS + tl.arange(0, PARTS)
        slot, mask = domain * width + part, part < width
        if not CUT.uses_batch:
            mean, var = _read(running_mean, slot, mask), _read(running_var, slot, mask)
        elif CUT.samples:  # parts of several samples: running statistics follow their average
            mean, var, count = _pool(
                stats, num_stats, 0, rows, None, 0, part, width, width, 1, 1, 1, 0, 0, 1, 1, MEMBERS, False
            )
            count = count * 0 + CUT.samples * per_part * length
        else:
            values = tl.load(counts + domain)
            mean, var, count = _pool(
                columns, domains * c * NORM.strips, domain, 1, None, 0, part, width, c, values, values, 1, 0,
                CUT.channels, CUT.strips, NORM.strips, MEMBERS, True,
            )  # fmt: skip
        if not CUT.samples:
            tl.store(stats + slot, mean, mask=mask)
            tl.store(stats + num_stats + slot, var, mask=mask)
        if UPDATE and CUT.uses_batch:
            unbiased = var * tl.where(count > 1, count, 1.0) / tl.where(count > 2, count - 1, 1.0)
            _update(running_mean, slot, mean, momentum, mask & (count > 0))
            _update(running_var, slot, unbiased, momentum, mask & (count > 0))


@triton.jit
def pool_columns(
    columns, counts, stats, running, num_batches, n, c, length, num_stats, momentum,
    NORM: tl.constexpr, UPDATE: tl.constexpr, PARTS: tl.constexpr, MEMBERS: tl.constexpr,
):  # fmt: skip
    pid, domains, offset = tl.program_id(0), max(NORM.domains, 1), 0
    if UPDATE and num_batches is not None:
        if pid < domains:
            present = (tl.load(counts + pid) > 0).to(tl.int64) if NORM.pools_columns else 1
            tl.store(num_batches + pid, tl.load(num_batches + pid) + present)
    for k in tl.static_range(len(NORM.cuts)):
        rows, width, per_part = _size(n, c, NORM.cuts[k], NORM)
        if NORM.cuts[k].samples != 1:
            _pool_columns(
                pid, columns, counts, stats + offset, num_stats, running[2 * k], running[2 * k + 1], n, c, length, momentum,
                NORM.cuts[k], NORM, UPDATE, PARTS, MEMBERS,
            )  # fmt: skip
            pid -= domains * tl.cdiv(width, PARTS)
        offset += rows * width


@triton.jit
def _weight(logits, group, INDEX: tl.constexpr, NUM: tl.constexpr, NORM: tl.constexpr):
    """Return the mixing weights of one cut."""
    if logits is None:
        return 1.0
    else:
        own = tl.load(logits + group * NUM + INDEX).to(tl.float64)
        weight = own
        if NORM.mixing == "softmax":
            weight = own * 0
            for k in tl.static_range(NUM):
                weight += tl.exp(tl.load(logits + group * NUM + k).to(tl.float64) - own)
            weight = 1 / weight
        elif NORM.mixing == "argmax":  # ties go to the first cut
            weight = own * 0 + 1
            for k in tl.static_range(NUM):
                other = tl.load(logits + group * NUM + k).to(tl.float64)
                weight = tl.where(other >= own if k < INDEX else other > own, 0.0, weight)
        return weight


@triton.jit
def _slot(sample, channel, strip, label, n, c, K: tl.constexpr, NORM: tl.constexpr):
    """Return for each row the slot of a cut's statistic in the table of all statistics."""
    CUT: tl.constexpr = NORM.cuts[K]
    offset = 0
    for k in tl.static_range(K):
        rows, width, per_part = _size(n, c, NORM.cuts[k], NORM)
        offset += rows * width
    rows, width, per_part = _size(n, c, CUT, NORM)
    row = sample // CUT.samples if CUT.samples else (label if NORM.domains else label * 0)
    channels, strips = c // CUT.channels if CUT.channels else 1, NORM.strips // CUT.strips
    return offset + row * width + channel // channels * CUT.strips + strip // strips


@triton.jit
def _mix(stats, logits, sample, channel, strip, label, mask, n, c, VAR: tl.constexpr, NORM: tl.constexpr):
    """Return the mixed means or variances of rows."""
    mixed = channel.to(tl.float64) * 0
    for k in tl.static_range(len(NORM.cuts)):
        if (NORM.cuts[k].var if VAR else NORM.cuts[k].mean) >= 0:
            weight = _weight(
                logits, channel // (c // NORM.groups), NORM.cuts[k].var if VAR else NORM.cuts[k].mean,
                NORM.num_vars if VAR else NORM.num_means, NORM,
            )  # fmt: skip
            value = tl.load(stats + _slot(sample, channel, strip, label, n, c, k, NORM), mask=mask, other=0.0)
            mixed += tl.where(weight == 0, 0.0, weight * value)
    return mixed


@triton.jit
def _affine(weight, bias, slot, mask):
    """Return γ and β."""
    if weight is None:
        return 1.0, 0.0
    else:
        gamma, beta = tl.load(weight + slot, mask=mask, other=0.0), tl.load(bias + slot, mask=mask, other=0.0)
        return gamma.to(tl.float64), beta.to(tl.float64)


@triton.jit
def _row(row, mask, stats, labels, params, n, c, eps, num_stats, NORM: tl.constexpr):
    """Return sample, channel, strip and label of rows, mean, variance and 1/sqrt(var + ε), and the two stages of the affine."""
    strip, channel, sample = row % NORM.strips, row // NORM.strips % c, row // NORM.strips // c
    label = sample * 0
    if labels is not None:
        label = tl.load(labels + sample, mask=mask, other=0).to(tl.int32)
    mean = _mix(stats, params.mean_logits, sample, channel, strip, label, mask, n, c, False, NORM)
    var = _mix(stats + num_stats, params.var_logits, sample, channel, strip, label, mask, n, c, True, NORM)
    gamma, beta = _affine(params.weight, params.bias, channel, mask)
    slot = label * c if NORM.second_affine == "class" else (sample * c if NORM.second_affine == "sample" else 0)
    second_gamma, second_beta = _affine(params.second_weight, params.second_bias, slot + channel, mask)
    r = 1 / tl.sqrt(var + eps)
    return sample, channel, strip, label, mean, var, r, gamma, beta, second_gamma, second_beta


@triton.jit
def coefficients(
    stats, grads, counts, labels, params, table, n, c, length, num_stats, eps, NORM: tl.constexpr, BLOCK: tl.constexpr
):
    num_rows = n * c * NORM.strips
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = row < num_rows
    sample, channel, strip, label, mean, var, r, gamma, beta, second_gamma, second_beta = _row(
        row, mask, stats, labels, params, n, c, eps, num_stats, NORM
    )
    shift, a = mean.to(tl.float32).to(tl.float64), gamma * second_gamma * r
    p, q = a, second_gamma * beta + second_beta + a * (shift - mean)
    if grads is not None:
        p, q, size, moment = mean * 0, mean * 0, mean * 0, mean * 0
        for k in tl.static_range(len(NORM.cuts)):
            if NORM.cuts[k].uses_batch:
                rows, width, per_part = _size(n, c, NORM.cuts[k], NORM)
                slot = _slot(sample, channel, strip, label, n, c, k, NORM)
                if NORM.cuts[k].samples:
                    count = NORM.cuts[k].samples * per_part * length * 1.0
                else:
                    count = tl.load(counts + (label if NORM.domains else label * 0), mask=mask, other=1.0) * per_part
                slope = 2 * tl.load(grads + num_stats + slot, mask=mask, other=0.0) / count
                p += slope
                q += tl.load(grads + slot, mask=mask, other=0.0) / count
                size += tl.abs(slope)
                moment += tl.where(slope == 0, 0.0, slope * tl.load(stats + slot, mask=mask, other=0.0))
        # the slopes' center as shift: a cut of one value has a huge slope, and x − M = 0
        shift = tl.where(tl.abs(p) > size / 2, moment / tl.where(p == 0, 1.0, p), mean).to(tl.float32).to(tl.float64)
        q += p * shift - moment
        tl.store(table + 3 * num_rows + row, a, mask=mask)
    tl.store(table + row, shift, mask=mask)
    tl.store(table + num_rows + row, p, mask=mask)
    tl.store(table + 2 * num_rows + row, q, mask=mask)


@triton.jit
def _add(quantities, index, values):
    """Return a table (quantities, columns) with the sums of values (columns, samples) added to one quantity."""
    here = tl.arange(0, quantities.shape[0])[:, None] == index
    return quantities + tl.where(here, tl.sum(values, 1)[None, :], 0.0)


@triton.jit
def _add_logit(
    quantities, slot, mask, logits, channel, c, mixed, grad, FIRST: tl.constexpr,
    INDEX: tl.constexpr, NUM: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Return quantities with the gradient of a cut's λ added, from that of the mixed statistic."""
    if INDEX >= 0 and logits is not None:
        value = tl.load(slot, mask=mask, other=0.0)
        if NORM.mixing == "softmax":  # Σ w = 1
            value = (value - mixed) * _weight(logits, channel // (c // NORM.groups), INDEX, NUM, NORM)
        quantities = _add(quantities, FIRST + INDEX, tl.where(mask, value * grad, 0.0))
    return quantities


@triton.jit
def gradients(
    sums, stats, labels, params, rows, columns, n, c, num_splits, num_stats, eps,
    NORM: tl.constexpr, KEEP: tl.constexpr, PARTS: tl.constexpr, MEMBERS: tl.constexpr, QUANTITIES: tl.constexpr,
):  # fmt: skip
    num_columns = c * NORM.strips
    num_rows, field = n * num_columns, num_splits * n * num_columns
    column = tl.program_id(0) * PARTS + tl.arange(0, PARTS)
    total = tl.zeros([QUANTITIES, PARTS], tl.float64)
    for at in range(0, n, MEMBERS):
        samples = at + tl.arange(0, MEMBERS)[None, :]
        mask = (column < num_columns)[:, None] & (samples < n)
        row = samples * num_columns + column[:, None]
        sample, channel, strip, label, mean, var, r, gamma, beta, second_gamma, second_beta = _row(
            row, mask, stats, labels, params, n, c, eps, num_stats, NORM
        )
        g, t = mean * 0, mean * 0
        for split in range(num_splits):
            slot = sums + split * num_rows + row
            part = tl.load(slot + field, mask=mask, other=0.0)
            g += part
            t += tl.load(slot + 2 * field, mask=mask, other=0.0) + part * (tl.load(slot, mask=mask, other=0.0) - mean)
        g, t = tl.where(mask, g, 0.0), tl.where(mask, r * t, 0.0)  # t is Σ dy (x − mean) r
        dmean = tl.where(mask, -gamma * second_gamma * r * g, 0.0)
        dvar = tl.where(mask, -gamma * second_gamma * r * r * t / 2, 0.0)
        total = _add(_add(total, 0, dmean), 1, dvar)
        total = _add(_add(total, 2, second_gamma * t), 3, second_gamma * g)
        for k in tl.static_range(len(NORM.cuts)):
            slot = stats + _slot(sample, channel, strip, label, n, c, k, NORM)
            total = _add_logit(
                total, slot, mask, params.mean_logits, channel, c, mean, dmean, 4, NORM.cuts[k].mean, NORM.num_means, NORM
            )
            total = _add_logit(
                total, slot + num_stats, mask, params.var_logits, channel, c, var, dvar, 4 + NORM.num_means,
                NORM.cuts[k].var, NORM.num_vars, NORM,
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
def _sum(
    table, first, num, labels, label, logits, part, width, c, CHANNELS: tl.constexpr, PARTS: tl.constexpr, MEMBERS: tl.constexpr,
    INDEX: tl.constexpr, NUM: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Return the sums of parts of `num` rows of a table, times the mixing weights of one cut; 0 if INDEX < 0."""
    total = part.to(tl.float64) * 0
    if INDEX >= 0:
        for at in range(0, num * (c // CHANNELS if CHANNELS else 1) * (NORM.strips // PARTS), MEMBERS):
            row, channel, column, keep = _members(at, num, part, width, c, CHANNELS, PARTS, NORM.strips, MEMBERS)
            if labels is not None:
                keep = keep & (tl.load(labels + first + row, mask=keep, other=-1) == label)
            values = tl.load(table + (first + row) * c * NORM.strips + column, mask=keep, other=0.0).to(tl.float64)
            weight = _weight(logits, tl.where(keep, channel, 0) // (c // NORM.groups), INDEX, NUM, NORM)
            total += tl.sum(tl.where(weight == 0, 0.0, weight * values), 1)
    return total


@triton.jit
def _reduce_cut(
    pid, rows, columns, grads, labels, logits, n, c,
    CUT: tl.constexpr, INDEX: tl.constexpr, NUM: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of the mean or of the variance of a cut, if this is our job."""
    num, width, per_part = _size(n, c, CUT, NORM)
    blocks = tl.cdiv(width, CUT.parts)
    if (pid >= 0) & (pid < num * blocks):
        row, part = pid // blocks, pid % blocks * CUT.parts + tl.arange(0, CUT.parts)
        if CUT.samples or NORM.domains:
            table, first, size = rows, row * CUT.samples, CUT.samples if CUT.samples else n
        else:
            table, first, size = columns, 0, 1
        total = _sum(
            table, first, size, None if CUT.samples or not NORM.domains else labels, row, logits, part, width, c,
            CUT.channels, CUT.strips, CUT.members, INDEX, NUM, NORM,
        )  # fmt: skip
        tl.store(grads + row * width + part, total, mask=part < width)


@triton.jit
def _reduce_affine(pid, table, out, first, num, labels, row, c, NORM: tl.constexpr, PARTS: tl.constexpr, MEMBERS: tl.constexpr):
    """Sum the gradients of γ or β of each channel over strips and `num` rows."""
    if out is not None:
        part = pid % tl.cdiv(c, PARTS) * PARTS + tl.arange(0, PARTS)
        total = _sum(table, first, num, labels, row, None, part, c, c, 0, 1, MEMBERS, 0, 1, NORM)
        tl.store(out + row * c + part, total, mask=part < c)


@triton.jit
def _reduce_logits(pid, columns, out, c, NUM: tl.constexpr, NORM: tl.constexpr):
    """Sum the gradients of λ of a group of channels over its columns."""
    if out is not None:
        group = pid + tl.arange(0, 1)
        for i in tl.static_range(NUM):
            table = columns + i * c * NORM.strips
            total = _sum(table, 0, 1, None, 0, None, group, NORM.groups, c, NORM.groups, 1, 1024, 0, 1, NORM)
            tl.store(out + group * NUM + i, total)


@triton.jit
def reduce(
    rows, columns, grads, labels, params, dparams, n, c, num_stats, num_second,
    NORM: tl.constexpr, PARTS: tl.constexpr, MEMBERS: tl.constexpr,
):  # fmt: skip
    pid, num_columns, offset = tl.program_id(0), c * NORM.strips, 0
    num_rows = n * num_columns
    for k in tl.static_range(len(NORM.cuts)):
        num, width, per_part = _size(n, c, NORM.cuts[k], NORM)
        if NORM.cuts[k].uses_batch:
            _reduce_cut(
                pid, rows, columns, grads + offset, labels, params.mean_logits, n, c,
                NORM.cuts[k], NORM.cuts[k].mean, NORM.num_means, NORM,
            )  # fmt: skip
            _reduce_cut(
                pid, rows + num_rows, columns + num_columns, grads + num_stats + offset, labels, params.var_logits, n, c,
                NORM.cuts[k], NORM.cuts[k].var, NORM.num_vars, NORM,
            )  # fmt: skip
            pid -= num * tl.cdiv(width, NORM.cuts[k].parts)
        offset += num * width
    blocks = tl.cdiv(c, PARTS)
    if (pid >= 0) & (pid < blocks):
        _reduce_affine(pid, columns + 2 * num_columns, dparams.weight, 0, 1, None, 0, c, NORM, PARTS, MEMBERS)
        _reduce_affine(pid, columns + 3 * num_columns, dparams.bias, 0, 1, None, 0, c, NORM, PARTS, MEMBERS)
    pid -= blocks
    if (pid >= 0) & (pid < num_second * blocks):
        row = pid // blocks
        first, num = row if NORM.second_affine == "sample" else 0, 1 if NORM.second_affine == "sample" else n
        classes = labels if NORM.second_affine == "class" else None
        _reduce_affine(pid, rows + 2 * num_rows, dparams.second_weight, first, num, classes, row, c, NORM, PARTS, MEMBERS)
        _reduce_affine(pid, rows + 3 * num_rows, dparams.second_bias, first, num, classes, row, c, NORM, PARTS, MEMBERS)
    pid -= num_second * blocks
    if (pid >= 0) & (pid < NORM.groups):
        _reduce_logits(pid, columns + 4 * num_columns, dparams.mean_logits, c, NORM.num_means, NORM)
        _reduce_logits(pid, columns + (4 + NORM.num_means) * num_columns, dparams.var_logits, c, NORM.num_vars, NORM)
