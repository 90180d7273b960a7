"""Checks of a forward pass: `check_input` before the computation, `check_batch` before the update of running statistics.

Messages are formatted only when a check fails, so the checks are fast and can be traced.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anynorm.core.compat import can_read_values
from anynorm.core.cuts import ALL, Cut, format_numbers
from anynorm.core.moments import Moments, table_dtype
from anynorm.errors import AnynormError, ShapeError
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec
from anynorm.kernels.ragged import Mask, Points, Ragged
from anynorm.layers.channel_axis import resolve_axis, sizes

if TYPE_CHECKING:
    from anynorm.layers.norm import Norm

Shape = tuple[int, int, int]
MAX_SHAPES = 64
"""Number of shapes that a pass remembers as valid; images of ever new sizes must not fill the memory."""


def check_input(norm: Norm, spec: ForwardSpec, x: Tensor, ragged: Ragged | None = None) -> None:
    """Check that a norm supports the input x.

    Raises:
        ShapeError: if it does not.
    """
    if not isinstance(x, Tensor):
        raise ShapeError(f"The input must be a tensor (n, c, …); got a {type(x).__name__}. Layer {norm.spec!r}.")
    key: tuple[Any, ...] | None = None if torch.compiler.is_compiling() else (x.shape, x.dtype)
    if key is not None and ragged is not None:
        key = (*key, type(ragged), ragged.num_samples)
    if key is not None and key in spec.validated_shapes:
        return
    try:
        _check_dimensions(norm, x)
        n, c, positions = sizes(x, norm.channel_axis)
        _check_parts(norm, spec, (ragged.num_samples if isinstance(ragged, Points) else n, c, positions))
        if norm.training and norm.norm_spec.mean:  # with a mask, or for points of several samples, these are upper bounds
            _check_counts(norm, spec, (1, c, n) if isinstance(ragged, Points) else (n, c, positions))
    except ShapeError as error:
        axis = "" if norm.channel_axis == 1 else f" in axis {norm.channel_axis}"
        layer = f"Layer {norm.spec!r} with {norm.num_features} channels{axis}, input {x.dtype} {tuple(x.shape)}."
        raise ShapeError(f"{error} {layer}") from None
    if key is not None:
        if len(spec.validated_shapes) >= MAX_SHAPES:
            spec.validated_shapes.clear()
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


def check_not_expanded(norm: Norm, parameter: Tensor) -> None:
    """Check that a parameter is not one of torch's expanded weights, which know gradients of a few functions of torch only.

    Raises:
        AnynormError: if it is.
    """
    if type(parameter).__name__ == "ExpandedWeight":
        raise AnynormError(
            "torch's expanded weights (call_for_per_sample_grads) know no gradients of this layer. Use "
            "torch.func.vmap over samples, vmap(grad(loss), (None, 0))(params, x), where loss(params, x) calls "
            "functional_call(model, params, (x[None],)). "
            f"Layer {norm.spec!r} with {norm.num_features} channels."
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
    """Check that samples and positions can be divided into equal parts."""
    using = [cut for cut, uses_batch in zip(norm.cuts, spec.uses_batch, strict=True) if uses_batch]
    if shape[2] == 0 and using:
        raise ShapeError(f"{using[0]} takes statistics over positions; got an input without any. No axis may have length 0.")
    for cut in norm.cuts:
        cut.check_shape(shape, uses_batch=cut in using)


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
        if side and all([single[k] for k in side]):
            raise ShapeError(_single_value_message(norm.cuts[side[0]]))


def _num_values(norm: Norm, cut: Cut, shape: Shape) -> int:
    """Return the number of values per statistic; 0 if it depends on domains or other processes (see `check_batch`)."""
    if norm.has_variable_counts and cut.pools_samples and not cut.is_ghost:
        return 0
    return math.prod([length // part if part else 0 for length, part in zip(shape, cut.parts(shape), strict=True)])


def _uses_running(norm: Norm, spec: ForwardSpec, x: Tensor) -> bool:
    """Whether running statistics can take the place of those of the batch; False for an input without samples and channels."""
    return norm.training and spec.pools_batch and norm.has_running_stats and isinstance(x, Tensor) and x.dim() >= 2


def has_single_value(norm: Norm, spec: ForwardSpec, x: Tensor) -> bool:
    """Whether a cut that has running statistics would compute one from a single value, known from the shape of x."""
    if not _uses_running(norm, spec, x):
        return False
    shape = sizes(x, norm.channel_axis)
    return any([cut.pools_samples and _num_values(norm, cut, shape) == 1 for cut in norm.cuts])


def may_have_single_value(norm: Norm, spec: ForwardSpec, x: Tensor) -> bool:
    """Whether a domain or all processes together may have a single value per statistic: if one sample has only one."""
    if not spec.has_variable_counts or not _uses_running(norm, spec, x):
        return False
    shape = (1, x.shape[1], math.prod(x.shape[2:]))
    return any(
        [not cut.is_ghost and cut.pools_samples and math.prod(cut.parts(shape)[1:]) == math.prod(shape) for cut in norm.cuts]
    )


def check_counts(norm: Norm, spec: ForwardSpec, ragged: Ragged) -> None:
    """Check the numbers of values of the statistics of each sample, or of each ghost batch; `check_batch` checks all others.

    In training, statistics of single values are allowed if another sample has several. Nothing is checked in compiled code, and
    on devices where reading a value requires synchronization.

    Raises:
        ShapeError: if a mask hides all values of a statistic, or in training all statistics have single values.
    """
    cuts = {
        index: cut
        for index, (cut, uses_batch) in enumerate(zip(norm.cuts, spec.uses_batch, strict=True))
        if uses_batch and cut.samples == ALL and cut.space != ALL
    }
    if not cuts or not can_read_values(ragged[0]):
        return
    strips = math.lcm(*[cut.space for cut in cuts.values()])
    counts = ragged.counts(strips)
    if not counts.numel() or int(counts.min()) > 1:
        return
    counts = counts.to(table_dtype(counts)).expand(-1, norm.num_features, -1)
    zeros = torch.zeros_like(counts)
    by_cut = {index: cut.pool_moments(Moments(zeros, zeros, counts)).count for index, cut in cuts.items()}
    layer = f"Layer {norm.spec!r} with {norm.num_features} channels."
    for index, count in by_cut.items():
        parts = (count == 0).flatten(1).any(1).nonzero().flatten().tolist()
        if parts and isinstance(ragged, Mask):
            size = cuts[index].samples_per_part
            samples = [part * size + i for part in parts for i in range(size)]
            raise ShapeError(f"{_hidden_message(cuts[index], samples)} {layer}")
    if norm.training and norm.norm_spec.mean:
        single = {index for index, count in by_cut.items() if bool((count <= 1).all())}
        for side in (norm.mean_cut_indices, norm.var_cut_indices):
            if single.issuperset(side):
                raise ShapeError(f"{_single_value_message(norm.cuts[side[0]])} {layer}")


def check_batch(norm: Norm, batch: BatchStats, buffers: Buffers) -> None:
    """Check the numbers of values of statistics over samples; for domains, synchronized statistics, masks and batch indices.

    In compiled code, and on devices where reading a value requires synchronization, nothing is checked, so that a variance of 0
    can enter the running statistics.

    Raises:
        ShapeError: if a mask hides all values of a statistic, or in training one was computed over a single value.
    """
    for index, cut in enumerate(norm.cuts):
        if not cut.pools_samples:
            continue
        if isinstance(buffers.ragged, Mask) and not cut.is_ghost:
            samples = _hidden_samples(batch.by_cut[index], buffers.ragged.num_samples, buffers.labels)
            if samples:
                raise ShapeError(
                    f"{_hidden_message(cut, samples)} Inference uses running statistics. "
                    f"Layer {norm.spec!r} with {norm.num_features} channels."
                )
        if norm.training and norm.norm_spec.mean and batch.has_single_value(index):
            raise ShapeError(f"{_single_value_message(cut)} Layer {norm.spec!r} with {norm.num_features} channels.")


def _hidden_samples(moments: Moments | None, num_samples: int, labels: Tensor | None) -> list[int]:
    """Return the samples whose statistics, per domain or over all samples, have no values; none if the counts cannot be read."""
    if moments is None or not can_read_values(moments.count) or not bool((moments.count == 0).any()):
        return []
    is_hidden = (moments.count == 0).flatten(1).any(1).tolist()
    domains = [0] * num_samples if len(is_hidden) == 1 or labels is None else labels.tolist()
    return [sample for sample, domain in enumerate(domains) if is_hidden[domain]]


def _hidden_message(cut: Cut, samples: list[int]) -> str:
    return (
        f"The mask hides all values of a statistic of {cut}, in samples {format_numbers(samples)}. Leave at least one valid "
        "position, or remove these samples."
    )


def _single_value_message(cut: Cut) -> str:
    running = "pass single_value='running' to normalize by running statistics, " if cut.pools_samples else ""
    return (
        f"{cut} needs more than one value per statistic in training; got 1, whose variance is 0. Use more samples or positions, "
        f"call .eval(), {running}or use a norm that pools over channels (ln, gn, en)."
    )
