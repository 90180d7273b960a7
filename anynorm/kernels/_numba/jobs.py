"""A pass as a job: it is called through the address of a callback with the address of int64 numbers, named by their places here.

So one compiled function calls passes over any dtype and layout, alone or on several threads.
"""

from __future__ import annotations

from typing import Any

from numba import carray

from anynorm.kernels._numba import passes
from anynorm.kernels._numba.native import ask, callback, float32_at, float64_at, int64_at, kernel, uint16_at

MOMENTS, SCALE, SUMS, SUMS_ANEW, SPREAD = range(5)
(
    OP, THREADS, NUMBER, X, DY, OUT, SAMPLES, STRIPS, CHANNELS, LENGTH, KINDS, KIND, MEAN, VAR, G1, G2, K, A, B, Q, SIZE
) = range(21)  # fmt: skip


@kernel
def _range(job, rows):
    """Return this thread's range of rows, always the same one for the same number of threads."""
    threads = job[THREADS]
    thread = ask(job[NUMBER]) if threads > 1 else 0
    return rows * thread // threads, rows * (thread + 1) // threads


@kernel
def _flat(job, x_at, dy_at, out_at):
    columns, kinds = job[STRIPS] * job[CHANNELS], job[KINDS] * job[STRIPS] * job[CHANNELS]
    rows = job[SAMPLES] * columns
    shape = (rows, job[LENGTH])
    x, dy, out = carray(x_at, shape), carray(dy_at, shape), carray(out_at, shape)
    kind = carray(int64_at(job[KIND]), job[SAMPLES])
    mean, var = carray(float64_at(job[MEAN]), rows), carray(float64_at(job[VAR]), rows)
    g1, g2 = carray(float64_at(job[G1]), rows), carray(float64_at(job[G2]), rows)
    k, a = carray(float32_at(job[K]), kinds), carray(float32_at(job[A]), kinds)
    b, q = carray(float32_at(job[B]), kinds), carray(float32_at(job[Q]), kinds)
    lo, hi = _range(job, rows)
    if job[OP] == MOMENTS:
        passes.flat_moments(x, mean, var, lo, hi)
    elif job[OP] == SCALE:
        passes.flat_scale(x, out, kind, columns, k, a, b, lo, hi)
    elif job[OP] == SUMS:
        passes.flat_sums(x, dy, kind, columns, g1, g2, k, lo, hi)
    elif job[OP] == SUMS_ANEW:
        passes.flat_sums_anew(x, dy, mean, var, g1, g2, k, lo, hi)
    else:
        passes.flat_spread(x, dy, out, kind, columns, k, a, b, q, lo, hi)


@kernel
def _last(job, x_at, dy_at, out_at):
    strips, channels = job[STRIPS], job[CHANNELS]
    units = job[SAMPLES] * strips
    shape, rows, kinds = (units, job[LENGTH], channels), (units, channels), (job[KINDS] * strips, channels)
    x, dy, out = carray(x_at, shape), carray(dy_at, shape), carray(out_at, shape)
    kind = carray(int64_at(job[KIND]), job[SAMPLES])
    mean, var = carray(float64_at(job[MEAN]), rows), carray(float64_at(job[VAR]), rows)
    g1, g2 = carray(float64_at(job[G1]), rows), carray(float64_at(job[G2]), rows)
    k, a = carray(float32_at(job[K]), kinds), carray(float32_at(job[A]), kinds)
    b, q = carray(float32_at(job[B]), kinds), carray(float32_at(job[Q]), kinds)
    lo, hi = _range(job, units)
    if job[OP] == MOMENTS:
        passes.last_moments(x, mean, var, lo, hi)
    elif job[OP] == SCALE:
        passes.last_scale(x, out, kind, strips, k, a, b, lo, hi)
    elif job[OP] == SUMS:
        passes.last_sums(x, dy, kind, strips, g1, g2, k, lo, hi)
    elif job[OP] == SUMS_ANEW:
        passes.last_sums_anew(x, dy, mean, var, g1, g2, k, lo, hi)
    else:
        passes.last_spread(x, dy, out, kind, strips, k, a, b, q, lo, hi)


def _flat_float32(address):
    job = carray(int64_at(address), SIZE)
    _flat(job, float32_at(job[X]), float32_at(job[DY]), float32_at(job[OUT]))


def _flat_bfloat16(address):
    job = carray(int64_at(address), SIZE)
    _flat(job, uint16_at(job[X]), uint16_at(job[DY]), uint16_at(job[OUT]))


def _last_float32(address):
    job = carray(int64_at(address), SIZE)
    _last(job, float32_at(job[X]), float32_at(job[DY]), float32_at(job[OUT]))


def _last_bfloat16(address):
    job = carray(int64_at(address), SIZE)
    _last(job, uint16_at(job[X]), uint16_at(job[DY]), uint16_at(job[OUT]))


BODIES: dict[tuple[bool, int], Any] = {
    (False, 4): _flat_float32,
    (False, 2): _flat_bfloat16,
    (True, 4): _last_float32,
    (True, 2): _last_bfloat16,
}
_compiled: dict[tuple[bool, int], Any] = {}


def body(last: bool, width: int) -> int:
    """Return the address of the passes for a layout and a width of values in bytes, compiled at first use."""
    key = (last, width)
    if key not in _compiled:
        _compiled[key] = callback(BODIES[key])
    return int(_compiled[key].address)
