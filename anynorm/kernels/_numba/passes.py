"""The four passes over the big tensor: each a serial loop over a range, so that threads can share them out.

    moments   read x                mean and variance of each row
    scale     read x, write y       y = a (x − k) + b
    sums      read x, dy            Σ dy and Σ dy (x − k) of each row; with the moments again where k is the row's own mean
    spread    read x, dy, write dx  dx = a dy + p (x − k) + q

A row is one (sample, channel, strip). Tables of rows (mean, var, g1, g2) are (samples, columns); those of coefficients
(k, a, b or p, q) are (kinds, columns), where samples that are treated alike are of one kind. Flat: rows are contiguous in
memory. Last: channels are, and a column is a (strip, channel). Sums run in float32 lanes over blocks that stay in a cache, each
around its own mean; blocks are united in double.
"""

from __future__ import annotations

import numpy as np

from anynorm.kernels._numba.native import inlined, kernel, load, store

BLOCK = 1024  # values a block: 4 KB of float32, read twice from the first cache
TILE = 16384  # values a tile of positions × channels: 64 KB, read twice from the second; sums of 128 keep their digits


@inlined
def _block_moments(part, share):
    """Return mean and variance of a block; `share` is 1 / its size, for a division costs as much as the rest of a short row."""
    total = np.float32(0)
    for j in range(part.shape[0]):
        total += load(part[j])
    centre = total * np.float32(share)
    d1 = d2 = np.float32(0)
    for j in range(part.shape[0]):
        d = load(part[j]) - centre
        d1 += d
        d2 += d * d
    rest = np.float64(d1) * share
    return centre + rest, max(np.float64(d2) * share - rest * rest, 0.0)


@inlined
def _row_moments(row, share):
    """Return mean and variance of a row; `share` is 1 / its size."""
    size = row.shape[0]
    if size <= BLOCK:
        return _block_moments(row, share)
    m = q = n = 0.0
    for start in range(0, size, BLOCK):
        part = row[start : min(start + BLOCK, size)]
        count = part.shape[0]
        centre, var = _block_moments(part, 1.0 / count)
        delta = centre - m
        q += count * var + delta * delta * n * count / (n + count)
        n += count
        m += delta * count / n
    return m, q * share


@inlined
def _row_sums(row, up, centre):
    """Return Σ dy and Σ dy (x − centre) of a row."""
    size = row.shape[0]
    s = t = 0.0
    for start in range(0, size, BLOCK):
        part, ups = row[start : min(start + BLOCK, size)], up[start : min(start + BLOCK, size)]
        s1 = s2 = np.float32(0)
        for j in range(part.shape[0]):
            g = load(ups[j])
            s1 += g
            s2 += g * (load(part[j]) - centre)
        s += np.float64(s1)
        t += np.float64(s2)
    return s, t


@kernel
def flat_moments(x, mean, var, lo, hi):
    share = 1.0 / x.shape[1]
    for r in range(lo, hi):
        mean[r], var[r] = _row_moments(x[r], share)


@kernel
def flat_sums(x, dy, kind, columns, g1, g2, k, lo, hi):
    for r in range(lo, hi):
        g1[r], g2[r] = _row_sums(x[r], dy[r], k[kind[r // columns] * columns + r % columns])


@kernel
def flat_sums_anew(x, dy, mean, var, g1, g2, k, lo, hi):
    share = 1.0 / x.shape[1]
    for r in range(lo, hi):
        mean[r], var[r] = _row_moments(x[r], share)
        k[r] = np.float32(mean[r])
        g1[r], g2[r] = _row_sums(x[r], dy[r], k[r])


@kernel
def flat_scale(x, y, kind, columns, k, a, b, lo, hi):
    for r in range(lo, hi):
        i = kind[r // columns] * columns + r % columns
        ki, ai, bi = k[i], a[i], b[i]
        row, out = x[r], y[r]
        for j in range(row.shape[0]):
            store(out, j, (load(row[j]) - ki) * ai + bi)


@kernel
def flat_spread(x, dy, dx, kind, columns, k, a, p, q, lo, hi):
    for r in range(lo, hi):
        i = kind[r // columns] * columns + r % columns
        ki, ai, pi, qi = k[i], a[i], p[i], q[i]
        row, up, out = x[r], dy[r], dx[r]
        for j in range(row.shape[0]):
            store(out, j, load(up[j]) * ai + ((load(row[j]) - ki) * pi + qi))


@kernel
def last_moments(x, mean, var, lo, hi):
    length, channels = x.shape[1:]
    tile = min(128, max(8, TILE // channels))
    centre = np.empty(channels, np.float32)
    d1 = np.empty(channels, np.float32)
    d2 = np.empty(channels, np.float32)
    for n in range(lo, hi):
        m, q, done = mean[n], var[n], 0.0
        if length == 1:
            row = x[n, 0]
            for c in range(channels):
                m[c] = np.float64(load(row[c]))
                q[c] = m[c] - m[c]  # 0, or NaN
            continue
        m[:] = 0
        q[:] = 0
        for start in range(0, length, tile):
            part = x[n, start : min(start + tile, length)]
            count = part.shape[0]
            centre[:] = 0
            d1[:] = 0
            d2[:] = 0
            for s in range(count):
                row = part[s]
                for c in range(channels):
                    centre[c] += load(row[c])
            for c in range(channels):
                centre[c] /= np.float32(count)
            for s in range(count):
                row = part[s]
                for c in range(channels):
                    d = load(row[c]) - centre[c]
                    d1[c] += d
                    d2[c] += d * d
            for c in range(channels):
                rest = np.float64(d1[c]) / count
                delta = centre[c] + rest - m[c]
                q[c] += np.float64(d2[c]) - count * rest * rest + delta * delta * done * count / (done + count)
                m[c] += delta * count / (done + count)
            done += count
        for c in range(channels):
            q[c] = max(q[c], 0.0) / done


@kernel
def _unit_sums(x, dy, g1, g2, centre, s1, s2):
    length, channels = x.shape
    tile = min(128, max(8, TILE // channels))
    g1[:] = 0
    g2[:] = 0
    for start in range(0, length, tile):
        s1[:] = 0
        s2[:] = 0
        for s in range(start, min(start + tile, length)):
            row, up = x[s], dy[s]
            for c in range(channels):
                g = load(up[c])
                s1[c] += g
                s2[c] += g * (load(row[c]) - centre[c])
        for c in range(channels):
            g1[c] += np.float64(s1[c])
            g2[c] += np.float64(s2[c])


@kernel
def last_sums(x, dy, kind, strips, g1, g2, k, lo, hi):
    s1, s2 = np.empty(x.shape[2], np.float32), np.empty(x.shape[2], np.float32)
    for n in range(lo, hi):
        _unit_sums(x[n], dy[n], g1[n], g2[n], k[kind[n // strips] * strips + n % strips], s1, s2)


@kernel
def last_sums_anew(x, dy, mean, var, g1, g2, k, lo, hi):
    s1, s2 = np.empty(x.shape[2], np.float32), np.empty(x.shape[2], np.float32)
    for n in range(lo, hi):
        last_moments(x, mean, var, n, n + 1)
        for c in range(x.shape[2]):
            k[n, c] = np.float32(mean[n, c])
        _unit_sums(x[n], dy[n], g1[n], g2[n], k[n], s1, s2)


@kernel
def last_scale(x, y, kind, strips, k, a, b, lo, hi):
    for n in range(lo, hi):
        i = kind[n // strips] * strips + n % strips
        kn, an, bn = k[i], a[i], b[i]
        for s in range(x.shape[1]):
            row, out = x[n, s], y[n, s]
            for c in range(row.shape[0]):
                store(out, c, (load(row[c]) - kn[c]) * an[c] + bn[c])


@kernel
def last_spread(x, dy, dx, kind, strips, k, a, p, q, lo, hi):
    for n in range(lo, hi):
        i = kind[n // strips] * strips + n % strips
        kn, an, pn, qn = k[i], a[i], p[i], q[i]
        for s in range(x.shape[1]):
            row, up, out = x[n, s], dy[n, s], dx[n, s]
            for c in range(row.shape[0]):
                store(out, c, load(up[c]) * an[c] + ((load(row[c]) - kn[c]) * pn[c] + qn[c]))
