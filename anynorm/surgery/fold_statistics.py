"""Folding of norms with fixed statistics, y = A x + B per channel, into the convolution or linear layer before or after them.

layer, then norm      W ← A W          c ← A c + B
norm, then layer      W ← W A          c ← c + W B        not if the layer pads with zeros: the padding would have to be B

W and c are the weight and bias of the layer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anynorm import kernels
from anynorm.core.activation import Activation
from anynorm.errors import FoldError
from anynorm.layers.channel_axis import resolve_axis
from anynorm.layers.norm import Norm
from anynorm.surgery.dataflow import Trace
from anynorm.surgery.find import NormSite
from anynorm.surgery.new_norm import copy_hooks_and_parametrizations, make_equivalent
from anynorm.surgery.undo import UndoLog

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)


class StatisticsPlan(NamedTuple):
    """The layer into which a norm is folded, its position ("before" or "after" the norm), and A and B of the norm."""

    layer: nn.Module
    position: str
    scale: Tensor
    shift: Tensor

    def apply(self, site: NormSite, undo_log: UndoLog) -> None:
        """Fold the norm of a site."""
        _absorb(self, undo_log)
        undo_log.replace(site, Folded(site))

    def into(self, paths: dict[nn.Module, str]) -> str:
        """Return the path of the layer."""
        return paths[self.layer]


class Folded(nn.Module):
    """Replacement of a folded norm: adds the residual, applies activation and post modules of the norm, ignores a condition."""

    def __init__(self, site: NormSite) -> None:
        super().__init__()
        activation = site.info.activation
        before = [] if activation is None else [activation.module()]
        self.post_modules = nn.Sequential(*before, *site.info.post_modules.values())
        copy_hooks_and_parametrizations(site.module, self)
        self.training = site.module.training

    def forward(
        self, x: Tensor, condition: Any = None, *, residual: Tensor | None = None, activation: Activation | None = None
    ) -> Tensor:
        """Add the residual to x, and apply the activation of this call and the post modules."""
        y: Tensor = self.post_modules(kernels.finish(x, residual, activation))
        return y

    def __prepare_scriptable__(self) -> nn.Module:
        """Return what torch.jit.script compiles instead of this module."""
        return self.post_modules if len(self.post_modules) else nn.Identity()


def plan_statistics(site: NormSite, trace: Trace, layers: list[nn.Module], condition: Any) -> StatisticsPlan:
    """Return the plan for folding a norm.

    Raises:
        FoldError: with the reason if it cannot be folded.
    """
    layer, position = _neighbor(site, trace, layers)
    plan = StatisticsPlan(layer, position, *_coefficients(site, condition))
    if position == "after" and site.info.activation is not None:
        raise FoldError("it applies an activation before the layer after it")
    _check_layer(plan)
    return plan


def _neighbor(site: NormSite, trace: Trace, layers: list[nn.Module]) -> tuple[nn.Module, str]:
    """Return the layer into which the norm of a site can be folded, and its position, "before" or "after" the norm."""
    calls = trace.calls_of(site.module)
    if len(calls) != 1:
        raise FoldError(f"it runs {len(calls)} times on the example" if calls else "it does not run on the example")
    norm_input, norm_output = calls[0].input, calls[0].output
    layers = [layer for layer in layers if _has_same_channels(layer, site, norm_input)]
    layers = [layer for layer in layers if len(trace.calls_of(layer)) == 1]
    for layer in layers:
        call_of_layer = trace.calls_of(layer)[0]
        if isinstance(norm_input, Tensor) and (norm_input is call_of_layer.output or norm_input is call_of_layer.product):
            if trace.users(norm_input) != [site.module]:
                raise FoldError("other code uses the output of the layer before it too")
            return layer, "before"
    for layer in layers:
        if trace.calls_of(layer)[0].input is norm_output and trace.users(norm_output) == [layer]:
            if type(layer) not in LAYERS:
                raise FoldError(f"the layer after it, a {type(layer).__name__}, may pad its input in its own way")
            return layer, "after"
    raise FoldError("no convolution or linear layer is directly before or after it")


def _has_same_channels(layer: nn.Module, site: NormSite, norm_input: Any) -> bool:
    """Whether the channels of a layer are in the same axis as those of a norm: the last of a linear layer, 1 of a convolution."""
    if site.unsupported or not isinstance(norm_input, Tensor) or norm_input.dim() < 2:
        return not isinstance(layer, nn.Linear)
    axis = resolve_axis(site.info.channel_axis, norm_input.dim())
    return axis == norm_input.dim() - 1 if isinstance(layer, nn.Linear) else axis == 1


def not_fixed_reason(site: NormSite) -> str:
    """Return why the statistics of a supported norm are no fixed numbers; "" if they are."""
    return _equivalent(site).not_foldable_reason() or ""


def _equivalent(site: NormSite) -> Norm:
    return site.module if isinstance(site.module, Norm) else make_equivalent(site)


def _coefficients(site: NormSite, condition: Any) -> tuple[Tensor, Tensor]:
    """Return A and B of y = A x + B per channel, in float64."""
    if site.unsupported:
        raise FoldError(site.unsupported)
    norm = _equivalent(site)
    if reason := norm.not_foldable_reason():
        raise FoldError(reason)
    if norm.takes_condition and condition is None:
        raise FoldError("it is conditional; pass condition=…, the class or domain to fold for")
    return norm.fixed_affine(condition)


def _check_layer(plan: StatisticsPlan) -> None:
    """Raise FoldError if A and B cannot be folded into the layer."""
    layer: Any = plan.layer
    if hasattr(layer, "parametrizations") or layer._parameters.get("weight") is None:
        raise FoldError(f"the weight of the layer {plan.position} it is computed from other tensors")
    channels = _channels(layer, plan.position)
    if channels != len(plan.scale):
        raise FoldError(f"the layer {plan.position} it has {channels} channels, the norm {len(plan.scale)}")
    if plan.position == "before" or isinstance(layer, nn.Linear):
        return
    if layer.transposed:
        raise FoldError("the layer after it is a transposed convolution, whose output at the borders depends on fewer inputs")
    pads = layer.padding != "valid" if isinstance(layer.padding, str) else any(layer.padding)
    if pads and layer.padding_mode == "zeros" and bool(plan.shift.any()):
        raise FoldError("the convolution after it pads with zeros, and the padding would have to be the shift of the norm")


def _channels(layer: Any, position: str) -> int:
    """Return the number of output channels of a layer before the norm, or of input channels of a layer after it."""
    if isinstance(layer, nn.Linear):
        return layer.out_features if position == "before" else layer.in_features
    return int(layer.out_channels if position == "before" else layer.in_channels)


def absorb_input_affine(weight: Tensor, scale: Tensor, shift: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Return W A, and W B, which is added to the bias, for a weight (out, in / groups, …)."""
    by_group = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    new_weight = by_group * scale.reshape(groups, 1, -1, 1)
    return new_weight.reshape(weight.shape), (by_group * shift.reshape(groups, 1, -1, 1)).sum((2, 3)).reshape(-1)


def _absorb(plan: StatisticsPlan, undo_log: UndoLog) -> None:
    """Multiply A and B into the weight and bias of a layer."""
    layer: Any = plan.layer
    scale, shift = plan.scale, plan.shift
    weight: Tensor = layer.weight.double()
    outputs = _channels(layer, "before")
    bias = torch.zeros(outputs, dtype=torch.float64, device=weight.device) if layer.bias is None else layer.bias.double()
    groups = getattr(layer, "groups", 1)
    if plan.position == "after":
        new_weight, change = absorb_input_affine(weight, scale, shift, groups)
        bias = bias + change
    elif getattr(layer, "transposed", False):  # (in, out / groups, …)
        by_group = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
        new_weight = by_group * scale.reshape(groups, 1, -1, 1)
        bias = scale * bias + shift
    else:  # (out, …)
        new_weight = weight.reshape(outputs, -1) * scale.reshape(-1, 1)
        bias = scale * bias + shift
    _set_parameters(layer, new_weight.reshape(weight.shape), bias, undo_log)


def _set_parameters(layer: Any, weight: Tensor, bias: Tensor, undo_log: UndoLog) -> None:
    old = dict(layer._parameters)
    undo_log.undo_steps.append(lambda: layer._parameters.update(old))
    for name, value in (("weight", weight), ("bias", bias)):
        requires_grad = (old["weight"] if old[name] is None else old[name]).requires_grad
        layer._parameters[name] = nn.Parameter(value.to(old["weight"].dtype), requires_grad=requires_grad)
