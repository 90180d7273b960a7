"""Where the channels of a tensor are in the output of an operation, for operations that treat all channels alike.

Such an operation maps channel c of its inputs to channel c of its outputs, for all c in the same way: views, permutations, sums
of tensors, selections and means over other axes. So it keeps a mean over channels of zero, and a shift of all channels by the
same number stays one.

Matrix products and convolutions (`Product`) mix channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from anynorm.surgery.tensor_graph import VIEWS, Op, Value

AxisMap = list[int | None]
"""For each axis of an input, the axis of the output that has the same entries; None if there is none."""


def output_axis(op: Op, x: Value, y: Value, axis: int) -> int | None:
    """Return the axis of the output y that has the entries of an axis of the input x, None if there is none.

    Only for operations with `treats_channels_alike`.
    """
    return _RULES[op.name](op, x, y)[axis]


def input_axis(op: Op, x: Value, y: Value, axis: int) -> int | None:
    """Return the axis of the input x whose entries are on an axis of the output y, None if there is none."""
    axes = _RULES[op.name](op, x, y)
    return axes.index(axis) if axis in axes else None


def treats_channels_alike(op: Op) -> bool:
    """Whether an operation treats all channels alike, if its factors and masks are the same for all channels."""
    return op.name in _RULES


def is_affine_invariant(op: Op) -> bool:
    """Whether γ x + β goes through an operation with one input: op(γ x + β) = γ op(x) + β."""
    return op.name in _AFFINE_INVARIANT


def contents(op: Op) -> list[Value]:
    """Return the inputs of an operation that have channels: those that are not factors, masks or indices."""
    if op.name in ("where", "masked_fill", "masked_fill_", "index", "index_select", "embedding"):
        return [value for value in op.args[slice(1, 3) if op.name == "where" else slice(1)] if isinstance(value, Value)]
    if op.name in ("div", "div_"):
        return op.inputs[:1]
    return op.inputs


def constant_fill(op: Op) -> float:
    """Return the number that an operation adds to channels or puts in their place; 0 if it does neither."""
    if op.name in ("add", "add_", "sub", "sub_"):
        return 0.0 if isinstance(op.args[1], Value) else float(op.args[1])
    if op.name in ("masked_fill", "masked_fill_"):
        return float(op.args[2].tensor if isinstance(op.args[2], Value) else op.args[2])
    return float(op.argument(2, "value", 0) or 0) if op.name == "constant_pad_nd" else 0.0


def _aligned(_: Op, x: Value, y: Value) -> AxisMap:
    """Broadcasting: axes correspond from the last."""
    offset = y.tensor.dim() - x.tensor.dim()
    return [axis + offset if x.tensor.shape[axis] == y.tensor.shape[axis + offset] else None for axis in range(x.tensor.dim())]


def _reshaped(_: Op, x: Value, y: Value) -> AxisMap:
    """The same entries in the same order: an axis is one of the output if sizes are equal, and numbers of entries before it."""
    after = {(math.prod(y.tensor.shape[:axis]), size): axis for axis, size in reversed(list(enumerate(y.tensor.shape)))}
    return [after.get((math.prod(x.tensor.shape[:axis]), size)) for axis, size in enumerate(x.tensor.shape)]


def _permuted(op: Op, x: Value, _: Value) -> AxisMap:
    rank = x.tensor.dim()
    order = list(range(rank))
    if op.name == "permute":
        order = [axis % rank for axis in op.args[1]]
    elif rank > 1:
        first, second = (0, 1) if op.name == "t" else (op.args[1] % rank, op.args[2] % rank)
        order[first], order[second] = second, first
    return [order.index(axis) for axis in range(rank)]


def _other_axes(op: Op, x: Value, y: Value) -> AxisMap:
    """All axes but the one of the second argument, which is removed, or changed in size or order."""
    rank = x.tensor.dim()
    dim = op.argument(1, "dim", 0) % rank
    removed = y.tensor.dim() < rank
    return [None if axis == dim else axis - (removed and axis > dim) for axis in range(rank)]


def _stacked(op: Op, x: Value, y: Value) -> AxisMap:
    dim = op.argument(1, "dim", 0) % y.tensor.dim()
    return [axis + (axis >= dim) for axis in range(x.tensor.dim())]


def _same_size(_: Op, x: Value, y: Value) -> AxisMap:
    return [axis if x.tensor.shape[axis] == y.tensor.shape[axis] else None for axis in range(x.tensor.dim())]


def _rolled(op: Op, x: Value, _: Value) -> AxisMap:
    dims = op.argument(2, "dims", ()) if op.name == "roll" else op.args[1]
    rank = x.tensor.dim()
    return [None if not dims or axis in [dim % rank for dim in dims] else axis for axis in range(rank)]


def _padded(op: Op, x: Value, _: Value) -> AxisMap:
    pads = op.args[1]
    return [None if any(pads[2 * (x.tensor.dim() - 1 - axis) :][:2]) else axis for axis in range(x.tensor.dim())]


def _reduced(op: Op, x: Value, y: Value) -> AxisMap:
    rank = x.tensor.dim()
    dims = {dim % rank for dim in op.argument(1, "dim", None) or range(rank)}
    removed = y.tensor.dim() < rank
    return [None if axis in dims else axis - sum(dim < axis for dim in dims) * removed for axis in range(rank)]


def _space(_op: Op, x: Value, _y: Value) -> AxisMap:
    """Pooling or resizing of the axes after the first two."""
    return [0, 1, *(None for _ in x.tensor.shape[2:])] if x.tensor.dim() == 4 else [None] * x.tensor.dim()


def _indexed(op: Op, x: Value, y: Value) -> AxisMap:
    """Indexing by tensors: axes after the last index stay, counted from the last."""
    last = max(axis for axis, index in enumerate(op.args[1]) if index is not None)
    offset = y.tensor.dim() - x.tensor.dim()
    return [axis + offset if axis > last else None for axis in range(x.tensor.dim())]


def _embedded(_op: Op, _x: Value, y: Value) -> AxisMap:
    return [None, y.tensor.dim() - 1]


_Rule = Callable[[Op, Value, Value], AxisMap]
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias", "squeeze", "unsqueeze"), _reshaped),
    **dict.fromkeys(("t", "transpose", "permute"), _permuted),
    **dict.fromkeys(("alias", "clone", "contiguous", "detach", "lift_fresh", "_to_copy", "expand", "repeat"), _aligned),
    **dict.fromkeys(("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "neg", "where"), _aligned),
    **dict.fromkeys(("masked_fill", "masked_fill_", "native_dropout"), _aligned),
    **dict.fromkeys(("select", "unbind", "cat", "index_select"), _other_axes),
    **dict.fromkeys(("slice", "split", "split_with_sizes"), _same_size),
    **dict.fromkeys(("mean", "sum"), _reduced),
    **dict.fromkeys(("roll", "flip"), _rolled),
    **dict.fromkeys(("_adaptive_avg_pool2d", "avg_pool2d", "upsample_nearest2d"), _space),
    **dict.fromkeys(("upsample_bilinear2d", "_upsample_bilinear2d_aa"), _space),
    **dict.fromkeys(("upsample_bicubic2d", "_upsample_bicubic2d_aa"), _space),
    "stack": _stacked,
    "constant_pad_nd": _padded,
    "index": _indexed,
    "embedding": _embedded,
}
_AFFINE_INVARIANT = {*VIEWS, "clone", "contiguous", "lift_fresh", "_to_copy", "repeat", "index_select", "index", "mean", "roll"}
_AFFINE_INVARIANT |= {"flip", "native_dropout", "_adaptive_avg_pool2d"}


class Product(NamedTuple):
    """A matrix product or a convolution: y = x W + b over one axis of x and W.

    Attributes:
        x: the input.
        weight: W.
        bias: b; None without one.
        x_axis: the axis of x over which the product sums.
        in_axis: the axis of W over which it sums.
        out_axis: the axis of W with the channels of y.
        y_axis: the axis of y with its channels.
    """

    x: Value
    weight: Value
    bias: Value | None
    x_axis: int
    in_axis: int
    out_axis: int
    y_axis: int


def product_of(op: Op) -> Product | None:
    """Return the product that an operation computes; None if it is no product, or one scaled by a factor."""
    values = [value if isinstance(value, Value) else None for value in op.args]
    if op.name == "mm":
        return _product(values[0], values[1], None, (1, 0, 1, 1))
    if op.name == "addmm" and op.kwargs.get("beta", 1) == op.kwargs.get("alpha", 1) == 1:
        return _product(values[1], values[2], values[0], (1, 0, 1, 1))
    if op.name == "convolution":
        return _product(values[0], values[1], values[2], (1, 0, 1, 1) if op.args[6] else (1, 1, 0, 1))
    return None


def _product(x: Value | None, weight: Value | None, bias: Value | None, axes: tuple[int, int, int, int]) -> Product | None:
    return None if x is None or weight is None else Product(x, weight, bias, *axes)
