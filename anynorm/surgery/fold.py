"""Norms with fixed statistics go into the convolutions and linear layers beside them: y = A x + B for each channel.

layer, then norm      W ← A W          c ← A c + B
norm, then layer      W ← W A          c ← c + W B        not where zero padding would stand for A·0 + B
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anynorm.errors import FoldError, SurgeryError
from anynorm.layers.norm import Norm
from anynorm.surgery.adapters import NormInfo
from anynorm.surgery.dataflow import Trace, tensors_of, trace_example
from anynorm.surgery.find import NormSite, UndoLog, Where, all_or_nothing, check_model, choose, find_norms
from anynorm.surgery.replace import copy_surroundings, replacement
from anynorm.surgery.report import Report

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)
TOLERANCE = {torch.bfloat16: 0.1, torch.float16: 0.02}  # of the output's size; else 1e-3: past that a fold is wrong, not rounded


def fold(model: nn.Module, example: Any, where: Where = None, *, condition: Any = None) -> Report:
    """Fold norms into the layers beside them, in place, for inference; what cannot be folded is named with the reason.

    Args:
        example: an input, or a tuple of inputs; the model runs on it to find neighbours, and again to compare outputs.
        condition: the class or domain that conditional norms are folded for.
    """
    check_model(model)
    inputs = tuple(example) if isinstance(example, tuple | list) else (example,)
    sites = choose(find_norms(model), where)
    if not sites:
        raise SurgeryError(f"This {type(model).__name__} has no norm that is known: there is nothing to fold.")
    layers: list[nn.Module] = [module for module in model.modules() if isinstance(module, LAYERS)]
    trace, before = trace_example(model, inputs, [*layers, *(site.module for site in sites)])
    paths = {id(module): path for path, module in model.named_modules()}
    rows: dict[NormSite, dict[str, Any]] = {site: {"path": site.path, "norm": _called(site)} for site in sites}
    plans: dict[NormSite, tuple[nn.Module, str, tuple[Tensor, Tensor]]] = {}
    for site in sites:
        try:
            layer, side = _neighbour(site, trace, layers)
            scale, shift = _coefficients(site, condition)
            _check_layer(layer, side, scale, shift)
            plans[site] = (layer, side, (scale, shift))
        except FoldError as reason:
            rows[site]["left"] = str(reason)
    with all_or_nothing() as ledger, torch.no_grad():
        for site, plan in plans.items():
            _fold_one(site, plan, ledger)
        if _differs(model, inputs, before):  # one of them is more than it seems: find out which
            ledger.undo()
            for site in [site for site, plan in plans.items() if not _alone(model, (site, plan), inputs, before)]:
                rows[site]["left"] = f"folding it into '{paths[id(plans.pop(site)[0])]}' would change the output"
            for site, plan in plans.items():
                _fold_one(site, plan, ledger)
        error = _compare(model, inputs, before)
        if _differs(model, inputs, before):
            raise SurgeryError(f"Folding changed the output by {error:.2g} of its size; nothing was changed.")
    for site, (layer, side, _) in plans.items():
        rows[site] |= {"into": paths[id(layer)], "side": side}
    words = f"{len(plans)} of {len(rows)} norms folded; the output moved by {error:.1g} of its size."
    return Report(list(rows.values()), words, model, ledger.undo)


def _fold_one(site: NormSite, plan: tuple[nn.Module, str, tuple[Tensor, Tensor]], ledger: UndoLog) -> None:
    layer, side, coefficients = plan
    _absorb(layer, side, coefficients, ledger)
    ledger.put(site, Folded(site))


def _alone(model: nn.Module, one: tuple[NormSite, Any], inputs: tuple[Any, ...], before: Any) -> bool:
    """Whether a single norm can be folded without changing the output."""
    with all_or_nothing() as ledger:
        _fold_one(*one, ledger)
        same = not _differs(model, inputs, before)
        ledger.undo()
    return same


class Folded(nn.Module):
    """Stays in the place of a folded norm: what ran after it, or nothing; a condition is no longer asked for."""

    def __init__(self, site: NormSite) -> None:
        super().__init__()
        self.post_modules = nn.Sequential(*(site.reading.post_modules.values() if isinstance(site.reading, NormInfo) else ()))
        copy_surroundings(site.module, self)
        self.training = site.module.training

    def forward(self, x: Tensor, condition: Any = None) -> Tensor:
        """Go on with x."""
        y: Tensor = self.post_modules(x)
        return y


def _called(site: NormSite) -> str:
    return site.reading.spec if isinstance(site.reading, NormInfo) else type(site.module).__name__


def _compare(model: nn.Module, inputs: tuple[Any, ...], before: Any) -> float:
    """Give the largest change of an output, of its size; infinity where values are finite before or after, and not both."""
    _, after = trace_example(model, inputs, [])
    errors = [0.0]
    for old, new in zip(tensors_of(before), tensors_of(after), strict=True):
        if old.is_floating_point() and old.numel():
            finite = old.isfinite()
            size = old[finite].abs().max().clamp(min=1e-12) if bool(finite.any()) else 1.0
            change = (new[finite] - old[finite]).abs().max() / size if bool(finite.any()) else 0.0
            errors.append(float(change) if torch.equal(finite, new.isfinite()) else float("inf"))
    return max(errors)


def _differs(model: nn.Module, inputs: tuple[Any, ...], before: Any) -> bool:
    dtypes = [tensor.dtype for tensor in tensors_of(before)]
    return not _compare(model, inputs, before) <= max([TOLERANCE.get(dtype, 1e-3) for dtype in dtypes], default=1e-3)


def _neighbour(site: NormSite, trace: Trace, layers: list[nn.Module]) -> tuple[nn.Module, str]:
    """Find the layer that can take a norm in."""
    calls = trace.of(site.module)
    if len(calls) != 1:
        raise FoldError(f"the example reaches it {len(calls)} times" if calls else "the example does not reach it")
    call = calls[0]
    vectors = isinstance(call.taken, Tensor) and call.taken.dim() == 2
    layers = [layer for layer in layers if vectors or not isinstance(layer, nn.Linear)]  # elsewhere its features are no channels
    for layer in layers:
        made = [other for other in trace.of(layer) if other.given is call.taken]
        if made and len(trace.of(layer)) == 1:
            if trace.users(call.taken) == [site.module]:
                return layer, "before"
            raise FoldError("the layer before it gives its output to others too")
    users = trace.users(call.given)
    for layer in layers:
        taken = [other for other in trace.of(layer) if other.taken is call.given]
        if taken and len(trace.of(layer)) == 1 and users == [layer]:
            if type(layer) not in LAYERS:
                raise FoldError(f"the layer after it, a {type(layer).__name__}, may pad its input on its own")
            return layer, "after"
    raise FoldError("no convolution or linear layer is directly before or after it")


def _coefficients(site: NormSite, condition: Any) -> tuple[Tensor, Tensor]:
    """Give A and B of y = A x + B for each channel, in double."""
    reading = site.reading
    if isinstance(reading, str):
        raise FoldError(reading)
    norm = site.module if isinstance(site.module, Norm) else replacement(site, reading, reading.spec, {})[0]
    if reason := norm.not_foldable_reason():
        raise FoldError(reason)
    if norm.takes_condition and condition is None:
        raise FoldError("it is conditional: give condition=…, the class or domain to fold for")
    return norm.fixed_affine(condition)


def _check_layer(layer: Any, side: str, scale: Tensor, shift: Tensor) -> None:
    if hasattr(layer, "parametrizations") or layer._parameters.get("weight") is None:
        raise FoldError("the weight of the layer beside it is computed from others")
    channels = _channels(layer, side)
    if channels != len(scale):
        raise FoldError(f"the layer beside it has {channels} channels there, and the norm {len(scale)}")
    if side == "before" or isinstance(layer, nn.Linear):
        return
    if layer.transposed:
        raise FoldError("a transposed convolution after it spreads the shift unevenly at its edges")
    padded = layer.padding != "valid" if isinstance(layer.padding, str) else any(layer.padding)
    if padded and layer.padding_mode == "zeros" and bool(shift.any()):
        raise FoldError("the convolution after it pads with zeros, where the norm would have given its shift")


def _channels(layer: Any, side: str) -> int:
    if isinstance(layer, nn.Linear):
        return layer.out_features if side == "before" else layer.in_features
    return int(layer.out_channels if side == "before" else layer.in_channels)


def _absorb(layer: Any, side: str, coefficients: tuple[Tensor, Tensor], ledger: UndoLog) -> None:
    """Put A and B into a layer's weight and bias."""
    scale, shift = coefficients
    weight, bias = layer.weight.double(), layer.bias
    outputs = _channels(layer, "before")
    old_bias = torch.zeros(outputs, dtype=torch.float64, device=weight.device) if bias is None else bias.double()
    if side == "before":
        shape = _output_shape(layer, weight)
        new_weight = (weight.reshape(shape) * scale.reshape(_at_outputs(layer, shape))).reshape(weight.shape)
        new_bias = scale * old_bias + shift
    else:
        groups = getattr(layer, "groups", 1)
        by_group = weight.reshape(groups, outputs // groups, weight.shape[1], -1)
        new_weight = (by_group * scale.reshape(groups, 1, -1, 1)).reshape(weight.shape)
        new_bias = old_bias + (by_group * shift.reshape(groups, 1, -1, 1)).sum((2, 3)).reshape(-1)
    _set(layer, new_weight, new_bias, ledger)


def _output_shape(layer: Any, weight: Tensor) -> tuple[int, ...]:
    """See the output channels of a weight as one axis, or as groups and channels of each where it is transposed."""
    if getattr(layer, "transposed", False):
        return (layer.groups, weight.shape[0] // layer.groups, weight.shape[1], -1)
    return (weight.shape[0], -1)


def _at_outputs(layer: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], 1, shape[2], 1) if getattr(layer, "transposed", False) else (-1, 1)


def _set(layer: Any, weight: Tensor, bias: Tensor, ledger: UndoLog) -> None:
    old = dict(layer._parameters)
    ledger.backs.append(lambda: layer._parameters.update(old))
    for name, value in (("weight", weight), ("bias", bias)):
        needs = (old["weight"] if old[name] is None else old[name]).requires_grad
        layer._parameters[name] = nn.Parameter(value.to(old["weight"].dtype), requires_grad=needs)
