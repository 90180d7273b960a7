"""The four passes over the big tensor, in numba: each a serial loop over a range, so that threads can share them out.

    moments   read x                mean and variance of each row
    scale     read x, write y       y = a (x − k) + b
    sums      read x, dy            Σ dy and Σ dy (x − mean) of each row, and its moments again, so that nothing is saved but x
    spread    read x, dy, write dx  dx = a dy + p (x − k) + q

A row is one (sample, channel, strip). Flat: rows are contiguous, x is (rows, length) and tables are (rows,). Last: channels
are contiguous, x is (samples · strips, length, channels) and tables are (samples · strips, channels). Sums run in float32
lanes over blocks that stay in a cache, each around its own mean; blocks are united in double. bfloat16 comes as uint16 and is
widened on the way.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

FAST = {"reassoc", "contract", "arcp", "nsz"}  # sums may be reordered into lanes; NaN and infinity keep their meaning
BLOCK = 1024  # values a block: 4 KB of float32, read twice from the first cache
TILE = 16384  # values a tile of positions × channels: 64 KB, read twice from the second; sums of 128 keep their digits


def kernel(function: Any) -> Any:
    """Compile on first use, keep on disk where there is a place for it, and let other threads run meanwhile."""
    options = {"nogil": True, "fastmath": FAST, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither beside this file nor in the user's cache directory can be written
        return numba.njit(**options)(function)


@intrinsic
def _as_float(context: Any, bits: Any) -> Any:
    """Read 32 bits as a float32."""
    return types.float32(types.uint32), lambda _, builder, __, args: builder.bitcast(args[0], ir.FloatType())


@intrinsic
def _as_bits(context: Any, value: Any) -> Any:
    """Read a float32 as 32 bits."""
    return types.uint32(types.float32), lambda _, builder, __, args: builder.bitcast(args[0], ir.IntType(32))


def load(value):
    """Widen a value to float32."""


def store(out, index, value):
    """Write a float32, rounded to the nearest even bfloat16 where that is what `out` holds."""


@overload(load)
def _load(value):
    if value == types.uint16:
        return lambda value: _as_float(np.uint32(value) << np.uint32(16))
    return lambda value: value


@overload(store)
def _store(out, index, value):
    def plain(out, index, value):
        out[index] = value

    def rounded(out, index, value):
        bits = _as_bits(value)
        up = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        out[index] = np.uint16(up) if value == value else np.uint16(0x7FC0)

    return rounded if out.dtype == types.uint16 else plain


@kernel
def flat_moments(x, mean, var, lo, hi):
    size = x.shape[1]
    for r in range(lo, hi):
        m = q = n = 0.0
        for start in range(0, size, BLOCK):
            part = x[r, start : min(start + BLOCK, size)]
            count = part.shape[0]
            total = np.float32(0)
            for j in range(count):
                total += load(part[j])
            centre = total / np.float32(count)
            d1 = d2 = np.float32(0)
            for j in range(count):
                d = load(part[j]) - centre
                d1 += d
                d2 += d * d
            rest = np.float64(d1) / count
            delta = centre + rest - m
            q += np.float64(d2) - count * rest * rest + delta * delta * n * count / (n + count)
            n += count
            m += delta * count / n
        mean[r] = m
        var[r] = max(q, 0.0) / n


@kernel
def flat_sums(x, dy, mean, var, g1, g2, lo, hi):
    size = x.shape[1]
    for r in range(lo, hi):
        m = q = n = s = t = 0.0
        for start in range(0, size, BLOCK):
            part = x[r, start : min(start + BLOCK, size)]
            up = dy[r, start : min(start + BLOCK, size)]
            count = part.shape[0]
            total = np.float32(0)
            for j in range(count):
                total += load(part[j])
            centre = total / np.float32(count)
            d1 = d2 = s1 = s2 = np.float32(0)
            for j in range(count):
                d = load(part[j]) - centre
                g = load(up[j])
                d1 += d
                d2 += d * d
                s1 += g
                s2 += g * d
            rest = np.float64(d1) / count
            delta = centre + rest - m
            q += np.float64(d2) - count * rest * rest + delta * delta * n * count / (n + count)
            n += count
            m += delta * count / n
            s += np.float64(s1)
            t += np.float64(s2) + np.float64(centre) * np.float64(s1)
        mean[r] = m
        var[r] = max(q, 0.0) / n
        g1[r] = s
        g2[r] = t - m * s


@kernel
def flat_scale(x, y, k, a, b, lo, hi):
    for r in range(lo, hi):
        kr, ar, br = k[r], a[r], b[r]
        row, out = x[r], y[r]
        for j in range(row.shape[0]):
            store(out, j, (load(row[j]) - kr) * ar + br)


@kernel
def flat_spread(x, dy, dx, k, a, p, q, lo, hi):
    for r in range(lo, hi):
        kr, ar, pr, qr = k[r], a[r], p[r], q[r]
        row, up, out = x[r], dy[r], dx[r]
        for j in range(row.shape[0]):
            store(out, j, load(up[j]) * ar + ((load(row[j]) - kr) * pr + qr))


@kernel
def last_moments(x, mean, var, lo, hi):
    length, channels = x.shape[1:]
    tile = min(128, max(8, TILE // channels))
    centre = np.empty(channels, np.float32)
    d1 = np.empty(channels, np.float32)
    d2 = np.empty(channels, np.float32)
    for n in range(lo, hi):
        m, q, done = mean[n], var[n], 0.0
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
def last_sums(x, dy, mean, var, g1, g2, lo, hi):
    length, channels = x.shape[1:]
    tile = min(128, max(8, TILE // channels))
    centre = np.empty(channels, np.float32)
    s1 = np.empty(channels, np.float32)
    s2 = np.empty(channels, np.float32)
    last_moments(x, mean, var, lo, hi)
    for n in range(lo, hi):
        for c in range(channels):
            centre[c] = np.float32(mean[n, c])
        g1[n] = 0
        g2[n] = 0
        for start in range(0, length, tile):
            part, ups = x[n, start : min(start + tile, length)], dy[n, start : min(start + tile, length)]
            s1[:] = 0
            s2[:] = 0
            for s in range(part.shape[0]):
                row, up = part[s], ups[s]
                for c in range(channels):
                    g = load(up[c])
                    s1[c] += g
                    s2[c] += g * (load(row[c]) - centre[c])
            for c in range(channels):
                g1[n, c] += np.float64(s1[c])
                g2[n, c] += np.float64(s2[c]) + (np.float64(centre[c]) - mean[n, c]) * np.float64(s1[c])


@kernel
def last_scale(x, y, k, a, b, lo, hi):
    for n in range(lo, hi):
        kn, an, bn = k[n], a[n], b[n]
        for s in range(x.shape[1]):
            row, out = x[n, s], y[n, s]
            for c in range(row.shape[0]):
                store(out, c, (load(row[c]) - kn[c]) * an[c] + bn[c])


@kernel
def last_spread(x, dy, dx, k, a, p, q, lo, hi):
    for n in range(lo, hi):
        kn, an, pn, qn = k[n], a[n], p[n], q[n]
        for s in range(x.shape[1]):
            row, up, out = x[n, s], dy[n, s], dx[n, s]
            for c in range(row.shape[0]):
                store(out, c, load(up[c]) * an[c] + ((load(row[c]) - kn[c]) * pn[c] + qn[c]))
