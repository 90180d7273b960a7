"""A whole pass in one call: forward is moments, tables, scale; backward is sums, tables, spread.

Tensors come as addresses, 0 where there is none, in the order of the places below. Threads are OpenMP's, the ones torch runs on.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from anynorm.kernels._numba import jobs
from anynorm.kernels._numba.native import bare, bare_int, call, call_shared, float32_at, int64_at, kernel, take
from anynorm.kernels._numba.tables import coefficients, count, gradients, lay, pool, soften, soften_back

# what a pass is, by place
SAMPLES, STRIPS, CHANNELS, LENGTH, KINDS, APART, CLASSES, GROUPS, WEIGHING, LOOKS, ANEW = range(11)
# addresses: what is read
WEIGHT, BIAS, OWN_WEIGHT, OWN_BIAS, MEAN_LOGITS, VAR_LOGITS, KIND, LABEL = range(8)
# how a pass is shared out
THREADS, PARALLEL, NUMBER, BODY, LEAST = range(5)
WORK = 7  # rows of columns that the tables are worked out on


@kernel
def _share(team, job, op, rows):
    """Do one pass over the big tensors, on as many threads as it is worth."""
    values = job[jobs.SAMPLES] * job[jobs.STRIPS] * job[jobs.CHANNELS] * job[jobs.LENGTH]
    job[jobs.OP] = op
    job[jobs.THREADS] = max(1, min(team[THREADS], rows, values // team[LEAST]))
    if job[jobs.THREADS] > 1:
        call_shared(team[PARALLEL], team[BODY], job.ctypes.data, job[jobs.THREADS])
    else:
        call(team[BODY], job.ctypes.data)


@kernel
def _new_job(shape, team, owned, x, dy, out):
    job = np.zeros(jobs.SIZE, np.int64)
    job[jobs.NUMBER], job[jobs.X], job[jobs.DY], job[jobs.OUT] = team[NUMBER], x, dy, out
    job[jobs.SAMPLES], job[jobs.STRIPS] = shape[SAMPLES], shape[STRIPS]
    job[jobs.CHANNELS], job[jobs.LENGTH] = shape[CHANNELS], shape[LENGTH]
    job[jobs.KINDS], job[jobs.KIND] = shape[KINDS], owned[KIND]
    return job


@kernel
def _bare_places(places):
    where, columns_of, offset, width, looks, mean_cuts, var_cuts = places
    tables = (bare_int(where), bare_int(columns_of))
    return *tables, bare_int(offset), bare_int(width), bare_int(looks), bare_int(mean_cuts), bare_int(var_cuts)


@kernel
def _weights(address, groups, cuts, how, scratch, cursor):
    weights = take(scratch, cursor, 1, groups, cuts)[0]
    weights[:] = 1.0
    if address:
        soften(carray(float32_at(address), (groups, cuts)), how, weights)
    return weights


@kernel
def _laid(address, start, columns, channel_of, scratch, cursor):
    row = take(scratch, cursor, 1, 1, columns)[0, 0]
    row[:] = start
    if address:
        lay(row, carray(float32_at(address), channel_of[-1] + 1), 0, channel_of)
    return row


@kernel
def _affine(places, shape, owned, channel_of, scratch, cursor):
    """Lay weights and affine out."""
    columns, groups, how = shape[STRIPS] * shape[CHANNELS], shape[GROUPS], shape[WEIGHING]
    mean_cuts, var_cuts = places[5], places[6]
    weights = (
        _weights(owned[MEAN_LOGITS], groups, mean_cuts.shape[0], how, scratch, cursor),
        _weights(owned[VAR_LOGITS], groups, var_cuts.shape[0], how, scratch, cursor),
    )
    gamma = _laid(owned[WEIGHT], 1.0, columns, channel_of, scratch, cursor)
    beta = _laid(owned[BIAS], 0.0, columns, channel_of, scratch, cursor)
    own = (shape[CLASSES], shape[CHANNELS])
    own_gamma, own_beta = carray(float32_at(owned[OWN_WEIGHT]), own), carray(float32_at(owned[OWN_BIAS]), own)
    label = carray(int64_at(owned[LABEL]), shape[KINDS])
    return weights, gamma, beta, own_gamma, own_beta, label, channel_of


@kernel
def _recall(places, kept, M, V):
    """Write what is kept in its place among the statistics."""
    offset, looks = places[2], places[4]
    at = 0
    for i in range(looks.shape[0]):
        if not looks[i]:
            for p in range(offset[i], offset[i + 1]):
                M[p], V[p] = kept[0, at], kept[1, at]
                at += 1


@kernel
def read(places, addresses, kept):
    """Copy what is kept out of the layer's buffers; a side that is not kept reads 0."""
    offset, looks = places[2], places[4]
    at = 0
    for i in range(looks.shape[0]):
        if not looks[i]:
            parts = offset[i + 1] - offset[i]
            for side in range(2):
                address = addresses[2 * i + side]
                values = carray(float32_at(address), parts)
                for p in range(parts):
                    kept[side, at + p] = values[p] if address else 0.0
            at += parts


@kernel
def forward(all_places, shape, all_channels, team, owned, x, y, kept, all_statistics, all_rows, all_scratch, eps):
    """Normalise x into y, leaving statistics (means and variances) and row moments."""
    samples, kinds, columns = shape[SAMPLES], shape[KINDS], shape[STRIPS] * shape[CHANNELS]
    places, channel_of, rows, scratch = _bare_places(all_places), bare_int(all_channels), bare(all_rows), bare(all_scratch)
    kind = carray(int64_at(owned[KIND]), samples)
    statistics = bare(all_statistics)
    M, V = statistics[0], statistics[1]
    cursor = np.zeros(1, np.int64)
    work = take(scratch, cursor, 1, WORK, columns)[0]
    members = take(scratch, cursor, 1, 1, M.shape[0])[0, 0]
    job = _new_job(shape, team, owned, x, 0, y)
    if shape[LOOKS]:
        job[jobs.MEAN], job[jobs.VAR] = rows[0].ctypes.data, rows[1].ctypes.data
        _share(team, job, jobs.MOMENTS, samples * columns)
        count(places, kind, members)
        pool(places, kind, members, rows[0], rows[1], M, V, work[0])
    _recall(places, kept, M, V)
    tables = take(scratch, cursor, 2, kinds, columns).view(np.float32).reshape(4, kinds, columns)
    affine = _affine(places, shape, owned, channel_of, scratch, cursor)
    coefficients(places, affine, M, V, eps, tables[0], tables[1], tables[2], work)
    job[jobs.K], job[jobs.A], job[jobs.B] = tables[0].ctypes.data, tables[1].ctypes.data, tables[2].ctypes.data
    _share(team, job, jobs.SCALE, samples * columns)


@kernel
def blend(tables, lo, hi, mean, var, samples, values, rate):
    """Blend means and unbiased variances of a cut into those kept: (1 − rate) s + rate new, in each domain that has samples.

    Args:
        samples: of each domain; one number where there are none.
        values: of one sample behind each statistic.
    """
    parts = (hi - lo) // samples.shape[0]
    for d in range(samples.shape[0]):
        count = samples[d] * values
        bessel = count / max(count - 1.0, 1.0)
        for side in range(2):
            address, factor = (mean, 1.0) if side == 0 else (var, bessel)
            if address and samples[d]:
                kept, new = carray(float32_at(address), hi - lo), tables[side, lo:hi]
                for p in range(d * parts, (d + 1) * parts):
                    kept[p] = np.float32((1.0 - rate) * kept[p] + rate * (factor * new[p]))


@kernel
def _write(address, values, channel_of):
    """Write a gradient out, strips of a channel added up."""
    if address:
        channels = channel_of[-1] + 1
        out = carray(float32_at(address), channels)
        if channel_of[0] == 1:
            for c in range(channels):
                out[c] = values[c]
            return
        total = np.zeros(channels)
        for j in range(values.shape[0]):
            total[channel_of[1 + j]] += values[j]
        for c in range(channels):
            out[c] = total[c]


@kernel
def _reduce(sums, kind, reduced):
    """Add the sums of samples of one kind up."""
    reduced[:] = 0.0
    for n in range(kind.shape[0]):
        for i in range(2):
            total, one = reduced[i, kind[n]], sums[i, n]
            for j in range(total.shape[0]):
                total[j] += one[j]


@kernel
def backward(all_places, shape, all_channels, team, owned, grads, x, dy, dx, kept, all_statistics, all_scratch, eps):
    """Return all gradients; where there are many statistics they come empty and are taken again."""
    samples, kinds, columns = shape[SAMPLES], shape[KINDS], shape[STRIPS] * shape[CHANNELS]
    places, channel_of, scratch = _bare_places(all_places), bare_int(all_channels), bare(all_scratch)
    kind = carray(int64_at(owned[KIND]), samples)
    statistics = bare(all_statistics)
    M, V = statistics[0], statistics[1]
    cursor = np.zeros(1, np.int64)
    work = take(scratch, cursor, 1, WORK, columns)[0]
    members = take(scratch, cursor, 1, 1, M.shape[0])[0, 0]
    count(places, kind, members)
    affine = _affine(places, shape, owned, channel_of, scratch, cursor)
    sums = take(scratch, cursor, 2, samples, columns)
    tables = take(scratch, cursor, 2, kinds, columns).view(np.float32).reshape(4, kinds, columns)
    k, a, p, q = tables[0], tables[1], tables[2], tables[3]
    job = _new_job(shape, team, owned, x, dy, dx)
    job[jobs.G1], job[jobs.G2], job[jobs.K] = sums[0].ctypes.data, sums[1].ctypes.data, k.ctypes.data
    if shape[ANEW]:
        rows = take(scratch, cursor, 2, samples, columns)
        job[jobs.MEAN], job[jobs.VAR] = rows[0].ctypes.data, rows[1].ctypes.data
        _share(team, job, jobs.SUMS_ANEW, samples * columns)
        pool(places, kind, members, rows[0], rows[1], M, V, work[0])
        _recall(places, kept, M, V)
    else:
        coefficients(places, affine, M, V, eps, k, a, p, work)
        _share(team, job, jobs.SUMS, samples * columns)
    if not shape[APART]:
        reduced = take(scratch, cursor, 2, kinds, columns)
        _reduce(sums, kind, reduced)
        sums = reduced
    start = cursor[0]
    own = (shape[CLASSES], shape[CHANNELS])
    d_statistics = take(scratch, cursor, 1, 2, M.shape[0])[0]
    d_weights = (take(scratch, cursor, 1, *affine[0][0].shape)[0], take(scratch, cursor, 1, *affine[0][1].shape)[0])
    d_shared, d_own = take(scratch, cursor, 1, 2, columns)[0], take(scratch, cursor, 2, *own)
    scratch[start : cursor[0]] = 0.0
    d_affine = (d_weights, d_shared[0], d_shared[1], d_own[0], d_own[1])
    length = float(shape[LENGTH])
    gradients(places, affine, statistics, members, length, eps, sums[0], sums[1], k, a, p, q, d_statistics, d_affine, work)
    _write(grads[WEIGHT], d_shared[0], channel_of)
    _write(grads[BIAS], d_shared[1], channel_of)
    for i in range(2):
        if grads[OWN_WEIGHT + i]:
            carray(float32_at(grads[OWN_WEIGHT + i]), own)[:] = d_own[i]
        if grads[MEAN_LOGITS + i]:
            w, dw = (affine[0][0], d_weights[0]) if i == 0 else (affine[0][1], d_weights[1])
            soften_back(w, dw, shape[WEIGHING], carray(float32_at(grads[MEAN_LOGITS + i]), w.shape))
    if dx:
        job[jobs.A], job[jobs.B], job[jobs.Q] = a.ctypes.data, p.ctypes.data, q.ctypes.data
        _share(team, job, jobs.SPREAD, samples * columns)
