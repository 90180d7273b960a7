"""Centering of the tensors that write a residual stream, so that its mean over channels is zero.

The input h of a LayerNorm is a sum of outputs of layers, embeddings and parameters (its writers), to which only operations that
treat all channels alike are applied. If each writer is centered, W ← W − mean of W over its output channels, then

    h ← h − mean(h)        LN(h) is unchanged, and equal to γ h/√(E[h²] + ε) + β

Anything else that reads h would change, so nothing else may read it. A LayerScale, h = γ ⊙ (W x + b), is multiplied into W and b
first, and its γ becomes 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from torch import Tensor

from anynorm.errors import SurgeryError
from anynorm.surgery.axis_maps import constant_fill, contents, input_axis, output_axis, product_of, treats_channels_alike
from anynorm.surgery.tensor_graph import NORM, Graph, Op, Source, Value

_SHAPE_ONLY = {"zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty", "new_full"}
_ZEROS = {"zeros", "zeros_like", "new_zeros"}
_PRODUCTS = {"mul", "mul_"}
_WITH_FACTORS = {"div", "div_", "where", "masked_fill", "masked_fill_"}
"""Operations with a divisor or a mask, which must be the same for all channels."""


class NotCenteredError(SurgeryError):
    """Raised if a tensor cannot be centered without changing the output of the model; the message is the reason."""


class Centering(NamedTuple):
    """A tensor to center: over which axis, and the γ of a LayerScale that is multiplied into it first."""

    source: Source
    axis: int
    scale: Source | None

    def apply(self, tensor: Tensor) -> Tensor:
        """Return the centered tensor, computed in float64."""
        centered = tensor.detach().double()
        if self.scale is not None:
            shape = [-1 if axis == self.axis else 1 for axis in range(tensor.dim())]
            centered = centered * self.scale.tensor.detach().double().reshape(shape)
        return (centered - centered.mean(self.axis, keepdim=True)).to(tensor.dtype)


class _State(NamedTuple):
    """How a value changes: by a number that is the same for all entries of an axis, after a product with γ of a LayerScale."""

    axis: int
    scale: Source | None


def find_writers(value: Value, axis: int) -> set[Centering]:
    """Return the tensors that must be centered so that the mean of a value over an axis is zero.

    Raises:
        NotCenteredError: if there are no such tensors.
    """
    centerings: set[Centering] = set()
    todo: list[tuple[Value, int, Source | None]] = [(value, axis % value.tensor.dim(), None)]
    seen = set(todo)
    while todo:
        current, current_axis, scale = todo.pop()
        if current.source is not None:
            centerings.add(Centering(current.source, current_axis, scale))
        else:
            new = [entry for entry in _inputs_to_center(current, current_axis, scale) if entry not in seen]
            seen.update(new)
            todo += new
    return centerings


def _inputs_to_center(value: Value, axis: int, scale: Source | None) -> list[tuple[Value, int, Source | None]]:
    """Return the inputs of the operation of a value, and their axes, which must have zero mean so that the value has."""
    op = value.op
    if op is None:
        raise NotCenteredError("an input of the model, or a constant, is added to the residual stream")
    if op.name == NORM:
        raise NotCenteredError(f"the output of the norm '{op.path}' is part of the residual stream, as in a post-norm network")
    if op.name in _ZEROS:
        return []
    product = product_of(op)
    if product is not None and axis == product.y_axis:
        if op.name == "convolution" and op.args[8] != 1:
            raise NotCenteredError(f"{op}, writes the residual stream in groups of channels, which have no common mean")
        bias = [] if product.bias is None else [(product.bias, product.bias.tensor.dim() - 1, scale)]
        return [(product.weight, product.out_axis, scale), *bias]
    if product is not None or not treats_channels_alike(op):
        raise NotCenteredError(f"{op}, computes a part of the residual stream")
    if constant_fill(op):
        raise NotCenteredError(f"{op}, adds the same number to all channels")
    parts = contents(op)
    if op.name in _PRODUCTS:
        parts, scale = _split_product(op, value, axis, scale)
    _check_factors(op, parts, value, axis)
    axes = [input_axis(op, part, value, axis) for part in parts]
    if None in axes:
        raise NotCenteredError(f"{op}, mixes channels, or adds the same number to all")
    return [(part, part_axis, scale) for part, part_axis in zip(parts, axes, strict=True) if part_axis is not None]


def _split_product(op: Op, y: Value, axis: int, scale: Source | None) -> tuple[list[Value], Source | None]:
    """Return the factor of a product that has channels, and the source of the other if it is the γ of a LayerScale."""
    varying = [factor for factor in op.inputs if _varies(factor, y, axis)]
    if len(varying) == 1:
        return varying, scale
    gammas = [factor for factor in varying if factor.origin().source is not None and _is_vector(factor, y, axis)]
    if len(varying) != 2 or not gammas or scale is not None:
        raise NotCenteredError(f"{op}, multiplies channels of the residual stream by different numbers")
    return [factor for factor in varying if factor is not gammas[0]], gammas[0].origin().source


def _check_factors(op: Op, parts: list[Value], y: Value, axis: int) -> None:
    """Raise NotCenteredError if a divisor, a mask or the like differs between channels."""
    factors = [value for value in op.inputs if value not in parts] if op.name in _WITH_FACTORS else []
    if any(_varies(factor, y, axis) for factor in factors):
        raise NotCenteredError(f"{op}, treats channels of the residual stream differently")


def _varies(factor: Value, y: Value, axis: int) -> bool:
    """Whether an input of an elementwise operation has more than one entry along an axis of the output."""
    own_axis = axis - (y.tensor.dim() - factor.tensor.dim())
    return own_axis >= 0 and factor.tensor.shape[own_axis] > 1


def _is_vector(factor: Value, y: Value, axis: int) -> bool:
    source = factor.origin().source
    channels = y.tensor.shape[axis]
    return source is not None and factor.tensor.numel() == source.tensor.numel() == channels


def check_readers(graph: Graph, centerings: Iterable[Centering], ignores_shift: Callable[[Op, int], bool]) -> None:
    """Check that centering does not change the outputs of a model.

    Args:
        graph: the operations of the model.
        centerings: the tensors to center.
        ignores_shift: whether a norm ignores a shift of all entries of an axis of its input by the same number.

    Raises:
        NotCenteredError: if it does, with the operation that reads a changed value.
    """
    states: dict[Value, _State] = {}
    scales: dict[Source, set[Op]] = {}
    for source, axis, scale in centerings:
        value = graph.sources[source]
        if states.setdefault(value, _State(axis, scale)) != _State(axis, scale):
            raise NotCenteredError(f"{source.path} would have to be centered in two ways")
        if scale is not None:
            scales.setdefault(scale, set())
    for op in graph.ops:
        shifted = {value: states[value] for value in op.inputs if value in states}
        if shifted and op.name not in _SHAPE_ONLY:
            states.update(_output_states(op, shifted, scales, ignores_shift))
    for value in graph.outputs & states.keys():
        what = f"'{value.source.path}'" if value.source else "the residual stream"
        raise NotCenteredError(f"{what} is an output of the model, without a norm")
    for gamma, products in scales.items():
        for op, _ in graph.reads(gamma.tensor):
            if op not in products:
                raise NotCenteredError(f"{gamma.path} of a LayerScale is also read in {op}")


def _output_states(
    op: Op, shifted: dict[Value, _State], scales: dict[Source, set[Op]], ignores_shift: Callable[[Op, int], bool]
) -> dict[Value, _State]:
    """Return how the outputs of an operation change with its inputs."""
    refusal = NotCenteredError(f"{op}, reads the residual stream, or a tensor that writes it, without a norm")
    state = next(iter(shifted.values()))
    if op.name in (NORM, "native_layer_norm"):
        if state.scale is None and list(shifted) == op.inputs[:1] and ignores_shift(op, state.axis):
            return {}
        raise refusal
    product = product_of(op)
    if product is not None:
        writers = [product.weight] if product.bias is None else [product.weight, product.bias]
        if product.x in shifted or shifted.get(product.weight, _State(product.out_axis, None)).axis != product.out_axis:
            raise refusal
        scale = state.scale
        if scale is not None and any(value not in shifted or shifted[value].scale is not scale for value in writers):
            raise refusal
        return {op.outputs[0]: _State(product.y_axis, scale)}
    if not treats_channels_alike(op) or not set(shifted) <= set(contents(op)):
        raise refusal
    states = {}
    for y in op.outputs:
        axis = output_axis(op, next(iter(shifted)), y, state.axis)
        if axis is None or any(output_axis(op, value, y, each.axis) != axis for value, each in shifted.items()):
            raise refusal
        states[y] = _State(axis, _output_scale(op, shifted, y, axis, scales, refusal))
    return states


def _output_scale(
    op: Op, shifted: dict[Value, _State], y: Value, axis: int, scales: dict[Source, set[Op]], refusal: NotCenteredError
) -> Source | None:
    """Return the γ by which an output is already multiplied; None after the LayerScale itself, whose γ is 1 then."""
    state = next(iter(shifted.values()))
    others = [value for value in op.inputs if value not in shifted and _varies(value, y, axis)]
    if op.name in _PRODUCTS and others:
        gamma = others[0].origin().source
        if len(shifted) != 1 or len(others) != 1 or gamma is None or state.scale != gamma:
            raise refusal
        scales[gamma].add(op)
        return None
    if op.name in _WITH_FACTORS and any(value not in contents(op) for value in others):
        raise refusal
    if len({each.scale for each in shifted.values()}) > 1 or (state.scale is not None and others):
        raise refusal
    if op.name in _PRODUCTS and len(shifted) > 1:
        raise refusal
    return state.scale
