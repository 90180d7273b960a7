"""Checks of a forward pass: `check_input` before the computation, `check_batch` before the update of running statistics.

Messages are formatted only when a check fails, so the checks are fast and can be traced.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anynorm.core.cuts import Cut
from anynorm.errors import ShapeError
from anynorm.kernels.interface import BatchStats, ForwardSpec
from anynorm.layers.channel_axis import resolve_axis, sizes

if TYPE_CHECKING:
    from anynorm.layers.norm import Norm

Shape = tuple[int, int, int]


def check_input(norm: Norm, spec: ForwardSpec, x: Tensor) -> None:
    """Check that a norm supports the input x.

    Raises:
        ShapeError: if it does not.
    """
    if not isinstance(x, Tensor):
        raise ShapeError(f"The input must be a tensor (n, c, …); got a {type(x).__name__}. Layer {norm.spec!r}.")
    key = None if torch.compiler.is_compiling() else (x.shape, x.dtype)
    if key is not None and key in spec.validated_shapes:
        return
    try:
        _check_dimensions(norm, x)
        _check_parts(norm, spec, sizes(x, norm.channel_axis))
    except ShapeError as error:
        axis = "" if norm.channel_axis == 1 else f" in axis {norm.channel_axis}"
        layer = f"Layer {norm.spec!r} with {norm.num_features} channels{axis}, input {x.dtype} {tuple(x.shape)}."
        raise ShapeError(f"{error} {layer}") from None
    if key is not None:
        spec.validated_shapes.add(key)


def check_residual(norm: Norm, x: Tensor, residual: Tensor) -> None:
    """Check that a residual can be added to the output for the input x.

    Raises:
        ShapeError: if it is not a tensor of the same shape, dtype and device.
    """
    if not isinstance(residual, Tensor):
        raise ShapeError(f"residual must be a tensor; got a {type(residual).__name__}. Layer {norm.spec!r}.")
    expected, actual = ((tuple(tensor.shape), tensor.dtype, tensor.device) for tensor in (x, residual))
    if expected != actual:
        shown = ["{} {} on {}".format(*values) for values in (expected, actual)]
        raise ShapeError(
            f"residual must have the shape, dtype and device of the input, {shown[0]}; got {shown[1]}. It is not broadcast: use "
            f"expand_as or .to(…). Layer {norm.spec!r}."
        )


def _check_dimensions(norm: Norm, x: Tensor) -> None:
    if not x.is_floating_point():
        raise ShapeError(f"The input must have a floating-point dtype; got {x.dtype}. Call .float() on it first.")
    if x.dim() < 2:
        raise ShapeError(
            "The input must have at least 2 dimensions: (n, c), (n, c, length), (n, c, h, w) or (n, c, t, h, w); "
            f"got {x.dim()} dimensions."
        )
    c = x.shape[resolve_axis(norm.channel_axis, x.dim())]
    if c != norm.num_features:
        other, axis_name = (-1, "last axis") if norm.channel_axis == 1 else (1, "axis 1")
        is_other = x.shape[other] == norm.num_features
        hint = f"The {axis_name} fits: pass channel_axis={other}." if is_other else f"Construct the norm with {c} channels."
        raise ShapeError(f"Axis {norm.channel_axis} must hold {norm.num_features} channels; got {c}. {hint}")


def _check_parts(norm: Norm, spec: ForwardSpec, shape: Shape) -> None:
    """Check that samples and positions can be divided into equal parts, and in training that statistics have several values."""
    using = [cut for cut, uses_batch in zip(norm.cuts, spec.uses_batch, strict=True) if uses_batch]
    if shape[2] == 0 and using:
        raise ShapeError(f"{using[0]} takes statistics over positions; got an input without any. No axis may have length 0.")
    for cut in norm.cuts:
        cut.check_shape(shape, uses_batch=cut in using)
    if norm.training and norm.norm_spec.mean:
        _check_counts(norm, spec, shape)


def _check_counts(norm: Norm, spec: ForwardSpec, shape: Shape) -> None:
    """Check that statistics are computed over more than one value.

    A cut with one value per statistic is allowed if it does not pool samples and is mixed with other cuts, as in SN on 1×1 maps.
    A norm whose mean is 0 is not checked: the second moment of one value is its square, not 0.
    """
    single = [
        uses_batch and _num_values(norm, cut, shape) == 1 for cut, uses_batch in zip(norm.cuts, spec.uses_batch, strict=True)
    ]
    for cut, is_single in zip(norm.cuts, single, strict=True):
        if is_single and (cut.pools_samples or norm.one_cut_per_channel):
            raise ShapeError(_single_value_message(cut))
    for side in (norm.mean_cut_indices, norm.var_cut_indices):
        if all([single[k] for k in side]):
            raise ShapeError(_single_value_message(norm.cuts[side[0]]))


def _num_values(norm: Norm, cut: Cut, shape: Shape) -> int:
    """Return the number of values per statistic; 0 if it depends on domains or other processes (see `check_batch`)."""
    if norm.has_variable_counts and cut.pools_samples and not cut.is_ghost:
        return 0
    return math.prod([length // part if part else 0 for length, part in zip(shape, cut.parts(shape), strict=True)])


def check_batch(norm: Norm, batch: BatchStats) -> None:
    """Check that batch statistics were computed over more than one value; for norms with domains or synchronized statistics.

    In compiled code, and on devices where reading a value requires synchronization, nothing is checked, so that a variance of 0
    can enter the running statistics.

    Raises:
        ShapeError: if a statistic was computed over a single value.
    """
    for index, cut in enumerate(norm.cuts if norm.norm_spec.mean else ()):
        if cut.pools_samples and batch.has_single_value(index):
            raise ShapeError(f"{_single_value_message(cut)} Layer {norm.spec!r} with {norm.num_features} channels.")


def _single_value_message(cut: Cut) -> str:
    return (
        f"{cut} needs more than one value per statistic in training; got 1, whose variance is 0. Use more samples or positions, "
        "call .eval(), or use a norm that pools over channels (ln, gn, en)."
    )
