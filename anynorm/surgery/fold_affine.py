"""Folding of γ and β of a norm, y = γ x̂ + β per channel, into the linear layers and convolutions that read y.

    W ← W diag(γ)        b ← b + W β

The norm stays, without γ and β: its statistics come from each input. All readers of y must be such layers, and nothing else may
use their weights.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anynorm.errors import FoldError
from anynorm.layers.channel_axis import resolve_axis
from anynorm.surgery.axis_maps import Product, contents, is_affine_invariant, output_axis, product_of
from anynorm.surgery.find import NormSite
from anynorm.surgery.fold_statistics import absorb_input_affine
from anynorm.surgery.new_norm import make_equivalent
from anynorm.surgery.tensor_graph import VIEWS, Graph, Op, Source, Value
from anynorm.surgery.undo import UndoLog

_TORCH_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


class View(NamedTuple):
    """A part of a parameter that an operation reads, such as the rows of q in the packed weight of nn.MultiheadAttention."""

    source: Source
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, tensor: Tensor) -> Tensor:
        """Return the same part of a tensor with the shape and strides of the parameter."""
        return tensor.as_strided(self.shape, self.stride, tensor.storage_offset() + self.offset)

    def overlaps(self, other: View) -> bool:
        """Whether two parts of a parameter have common entries."""
        covered = torch.zeros_like(self.source.tensor, dtype=torch.bool, device="cpu", memory_format=torch.preserve_format)
        self.of(covered).fill_(True)
        return bool(other.of(covered).any())


class Reader(NamedTuple):
    """A layer that reads the output of a norm: the parts of its weight and bias, the axes of the weight, and its groups."""

    weight: View
    bias: View | None
    in_axis: int
    out_axis: int
    groups: int


class AffinePlan(NamedTuple):
    """γ and β of a norm, and the layers into which they are folded."""

    scale: Tensor
    shift: Tensor
    readers: list[Reader]
    position: str = "after"

    def apply(self, site: NormSite, undo_log: UndoLog) -> None:
        """Fold γ and β of the norm of a site."""
        for reader in self.readers:
            _absorb(reader, self.scale, self.shift, undo_log)
        undo_log.replace(site, without_affine(site))

    def into(self, paths: dict[nn.Module, str]) -> str:
        """Return the paths of the layers."""
        return ", ".join(dict.fromkeys(paths[reader.weight.source.module] for reader in self.readers))


def plan_affine(site: NormSite, graph: Graph) -> AffinePlan:
    """Return the plan for folding γ and β of a norm into the layers that read its output.

    Raises:
        FoldError: with the reason if they cannot be folded.
    """
    names = {name for stage in site.info.norm_spec.affine.stages for name in stage.names}
    if not names or names - {"weight", "bias"}:
        raise FoldError("it has no γ and β per channel")
    if site.info.activation is not None or site.info.post_modules or hasattr(site.module, "parametrizations"):
        raise FoldError("it does more than normalize, or its γ and β are computed from other tensors")
    calls = graph.calls_of(site.module)
    if len(calls) != 1:
        raise FoldError(f"it runs {len(calls)} times on the example" if calls else "it does not run on the example")
    if len(calls[0].inputs) != 1:
        raise FoldError("it is called with further arguments, such as a residual")
    scale, shift = (_vector(site, name) for name in ("weight", "bias"))
    y = calls[0].outputs[0]
    uses = list(dict.fromkeys(_products(y, resolve_axis(site.info.channel_axis, y.tensor.dim()), graph)))
    readers = [_reader(op, shift) for op in uses]
    allowed = {*uses, *(addition.op for op in uses if (addition := _added_bias(op)) is not None)}
    _check_other_uses(readers, allowed, graph)
    return AffinePlan(scale, shift, list(dict.fromkeys(readers)))


def _vector(site: NormSite, name: str) -> Tensor:
    """Return γ or β of a norm in float64."""
    tensor = site.info.tensors.get(name)
    if tensor is not None:
        return tensor.detach().double()
    like = next(iter(site.info.tensors.values()))
    return torch.full((site.info.channels,), float(name == "weight"), dtype=torch.float64, device=like.device)


def _products(value: Value, axis: int, graph: Graph) -> Iterator[Op]:
    """Yield the products over the channels of a value; raise FoldError if anything else reads it."""
    if value in graph.outputs:
        raise FoldError("its output is an output of the model")
    for op in value.users:
        product = product_of(op)
        if product is not None and product.x is value and product.x_axis == axis and op.inputs.count(value) == 1:
            yield op
        elif is_affine_invariant(op) and contents(op) == [value]:
            for y in op.outputs:
                if y.users or y in graph.outputs:
                    y_axis = output_axis(op, value, y, axis)
                    if y_axis is None:
                        raise FoldError(f"its channels are split or mixed in {op}")
                    yield from _products(y, y_axis, graph)
        else:
            raise FoldError(f"its output is also read in {op}")


def _reader(op: Op, shift: Tensor) -> Reader:
    product: Any = product_of(op)
    groups = 1
    if op.name == "convolution":
        _, _, _, _, padding, _, transposed, _, groups = op.args
        if transposed:
            raise FoldError(f"{op}, is transposed, so its output at the borders depends on fewer inputs")
        if any(padding) and bool(shift.any()):
            raise FoldError(f"{op}, pads with zeros, and the padding would have to be β of the norm")
    weight = _view(product.weight, op)
    addition = _added_bias(op)
    added = product.bias if addition is None else addition.bias
    bias = None
    if bool(shift.any()):
        bias = _absent_bias(weight, op, product) if added is None else _view(added, op)
    return Reader(weight, bias, product.in_axis, product.out_axis, groups)


class _Addition(NamedTuple):
    op: Op
    bias: Value


def _added_bias(product: Op) -> _Addition | None:
    """Return the addition of a bias after a product, as in a linear layer whose input is not contiguous."""
    y = product.outputs[0]
    while len(y.users) == 1 and y.users[0].name in VIEWS:
        y = y.users[0].outputs[0]
    if len(y.users) != 1 or y.users[0].name not in ("add", "add_"):
        return None
    terms = [value for value in y.users[0].inputs if value.tensor.dim() == 1 and value.origin().source is not None]
    return _Addition(y.users[0], terms[0]) if terms else None


def _view(value: Value, op: Op) -> View:
    """Return the part of a parameter that a value is."""
    origin, part = value.origin(), value.tensor
    parameter = origin.tensor
    if origin.source is None or not isinstance(parameter, nn.Parameter):
        raise FoldError(f"the weight or bias of {op}, is computed from other tensors")
    if torch.empty_like(parameter, device="meta").stride() != parameter.stride():
        raise FoldError(f"the entries of {origin.source.path} are not contiguous in memory")
    return View(origin.source, tuple(part.shape), part.stride(), int(part.storage_offset() - parameter.storage_offset()))


def _absent_bias(weight: View, op: Op, product: Product) -> View:
    """Return the bias that a layer does not have yet."""
    module, name, path = weight.source
    bias_name = name.replace("weight", "bias")
    channels = weight.shape[product.out_axis]
    absent = bias_name in module._parameters and module._parameters[bias_name] is None
    if not absent or math.prod(weight.shape) != weight.source.tensor.numel():
        raise FoldError(f"{op}, has no bias, and β of the norm is not 0")
    return View(Source(module, bias_name, path.removesuffix(name) + bias_name), (channels,), (1,), 0)


def _check_other_uses(readers: list[Reader], allowed: set[Op], graph: Graph) -> None:
    """Raise FoldError if anything else reads the parts of the parameters into which γ and β are folded."""
    for view in (view for reader in readers for view in (reader.weight, reader.bias) if view is not None):
        if view.source not in graph.sources:  # an absent bias
            continue
        parameter = view.source.tensor
        shared = [source.path for source in graph.registered[id(parameter)] if source != view.source]
        if shared:
            raise FoldError(f"{view.source.path} is shared with {shared[0]}")
        for other, part in graph.reads(parameter):
            if other not in allowed and _view(part, other).overlaps(view):
                raise FoldError(f"{view.source.path} is also read in {other}")


def _absorb(reader: Reader, scale: Tensor, shift: Tensor, undo_log: UndoLog) -> None:
    """Multiply γ into a weight, and add the product with β to a bias."""
    new_weight = reader.weight.source.tensor.detach().clone()
    part = reader.weight.of(new_weight)
    by_output = part.movedim((reader.out_axis, reader.in_axis), (0, 1))
    absorbed, change = absorb_input_affine(by_output.double(), scale, shift, reader.groups)
    by_output.copy_(absorbed)
    _set_parameter(reader.weight.source, new_weight, undo_log)
    if reader.bias is not None:
        old = reader.bias.source.tensor
        new_bias = change.new_zeros(len(change), dtype=part.dtype) if old is None else old.detach().clone()
        bias = reader.bias.of(new_bias)
        bias.copy_(bias.double() + change)
        _set_parameter(reader.bias.source, new_bias, undo_log)


def _set_parameter(source: Source, tensor: Tensor, undo_log: UndoLog) -> None:
    parameters = source.module._parameters
    like = next(each for each in (parameters[source.name], *parameters.values()) if each is not None)
    undo_log.set_tensor(source.module, source.name, nn.Parameter(tensor, requires_grad=like.requires_grad))


def without_affine(site: NormSite) -> nn.Module:
    """Return the norm of a site without γ and β; a norm of torch stays one."""
    if type(site.module) not in _TORCH_NORMS:
        return make_equivalent(site, affine=False)
    norm: nn.Module = copy.copy(site.module)
    norm._parameters = dict.fromkeys(norm._parameters)
    setattr(norm, "elementwise_affine" if hasattr(norm, "elementwise_affine") else "affine", False)
    return norm
