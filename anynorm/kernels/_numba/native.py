"""What numba needs to be told about: compiling and keeping kernels, addresses, and bfloat16.

A pass over a tensor takes a few microseconds where the tensor is small, so kernels are handed addresses (a data_ptr costs a
tenth of an array), and one compiled function calls others through theirs.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core.ccallback import CFunc
from numba.extending import intrinsic, overload

FAST = {"reassoc", "contract", "arcp", "nsz"}  # sums may be reordered into lanes; NaN and infinity keep their meaning


_SOURCES = sorted(Path(__file__).parent.glob("*.py"))
_STAMP = hashlib.sha256(b"".join(source.read_bytes() for source in _SOURCES)).hexdigest()


def _keep(compiled: Any) -> Any:
    """Keep what is compiled on disk, where there is a place for it.

    numba would only ask whether the file of a kernel has changed, and a kernel takes in those of others.
    """
    try:
        compiled.enable_caching()
        compiled._cache._cache_file._source_stamp = _STAMP
    except RuntimeError:  # neither beside this file nor in the user's cache directory can be written
        pass
    return compiled


def kernel(function: Any) -> Any:
    """Compile on first use, and let other threads run meanwhile."""
    return _keep(numba.njit(nogil=True, fastmath=FAST, error_model="numpy")(function))


def callback(function: Any) -> Any:
    """Compile now, as a function of one address with an address of its own."""
    compiled = _keep(CFunc(function, ((types.int64,), types.void), locals={}, options={"error_model": "numpy"}))
    compiled.compile()
    return compiled


def inlined(function: Any) -> Any:
    """Compile as part of each kernel that calls it: a call costs as much as a short row."""
    return numba.njit(inline="always", nogil=True, fastmath=FAST, error_model="numpy")(function)


def _pointer_to(kind: Any) -> Any:
    @intrinsic
    def pointer(context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate

    return pointer


float32_at = _pointer_to(types.float32)
float64_at = _pointer_to(types.float64)
uint16_at = _pointer_to(types.uint16)
int64_at = _pointer_to(types.int64)


@kernel
def bare(array):
    """See an array of float64 without its count of references, which would be touched at every call; the array must live on."""
    return carray(float64_at(array.ctypes.data), array.shape)


@kernel
def bare_int(array):
    """See an array of int64 without its count of references."""
    return carray(int64_at(array.ctypes.data), array.shape)


@kernel
def take(scratch, cursor, count, rows, columns):
    """Take `count` tables of rows × columns off a scratch."""
    start = cursor[0]
    cursor[0] += count * rows * columns
    return scratch[start : cursor[0]].reshape(count, rows, columns)


_INT, _LONG = ir.IntType(32), ir.IntType(64)


@intrinsic
def call(context: Any, function: Any, argument: Any) -> Any:
    """Call void f(int64) at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_LONG])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def call_shared(context: Any, parallel: Any, function: Any, argument: Any, threads: Any) -> Any:
    """Call void f(int64) on several threads, by OpenMP's GOMP_parallel(f, argument, threads, flags) at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_LONG, _LONG, _INT, _INT])
        threads = builder.trunc(args[3], _INT)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1], args[2], threads, _INT(0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def ask(context: Any, function: Any) -> Any:
    """Call int f() at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_INT, [])
        return builder.sext(builder.call(builder.inttoptr(args[0], kind.as_pointer()), []), _LONG)

    return types.int64(types.int64), generate


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
