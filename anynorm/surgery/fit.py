"""Closed-form fit of γ and β of new norms, so that a pretrained network keeps its outputs; labels are not needed.

The batch contains the calibration images twice. The first half passes through the old norms and the second half through the new
norms; all other layers process both halves. At each norm, the output t of the old norm is the least-squares target for the
normalized input x̂ of the new norm, per channel:

    γ = cov(x̂, t) / (var(x̂) + ridge)        β = mean(t) − γ mean(x̂)

A norm without β, such as rms, has γ = E[x̂ t] / (E[x̂²] + ridge). The ridge is relative to the mean of var(x̂) over the channels,
which is 1 for norms. Other parameters of a norm keep their values, except those of point-wise functions (`fit_pointwise`).

The second half continues with γ x̂ + β, so each norm is fitted to inputs that come from the norms fitted before it. This takes one
forward pass over twice the images, independent of the depth. Running statistics are estimated from the same images.

All images form one batch, so the memory needed is that of one forward pass without gradients. Use fewer images if it is too much.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from anynorm.core.update_rules import Frozen, Running
from anynorm.errors import SurgeryError
from anynorm.layers.baselines.pointwise import PointwiseNorm
from anynorm.layers.channel_axis import to_channels_second
from anynorm.layers.norm import Norm
from anynorm.surgery.batches import Calibration, duplicate, gather
from anynorm.surgery.find import NormSite
from anynorm.surgery.fit_pointwise import fit_pointwise
from anynorm.surgery.modes import preserve_modes
from anynorm.surgery.new_norm import make_equivalent
from anynorm.surgery.report import Conversion
from anynorm.surgery.undo import temporary_changes

RIDGE = 1e-6  # of the mean variance of the channels
MIN_RIDGE = 1e-12  # for channels that are all constant
SAMPLES_AT_ONCE = 8  # samples converted to float64 at a time, few enough to stay in the cache
GOOD_FIT = 1e-4  # relative error below which a norm is not fitted


class FittingNorm(nn.Module):
    """Temporary replacement of a norm during the fit: the old norm for the first half of a batch, the new norm for the second.

    Args:
        norms: the old and the new norm.
        conversion: the row of the report, to which the errors are added.
        is_first: a list shared by all fitting norms: [True] until the first of them runs, where both halves must be equal.
    """

    def __init__(self, norms: tuple[Norm, Norm], conversion: Conversion, is_first: list[bool]) -> None:
        super().__init__()
        # norms in a tuple are not registered as children: `anynorm.condition` sets the condition of this module only
        self.norms, self.conversion, self.is_first = norms, conversion, is_first
        self.calls = 0
        self._condition: Any = None

    @property
    def takes_condition(self) -> bool:
        """Whether one of the two norms takes a condition."""
        return any(norm.takes_condition for norm in self.norms)

    def set_condition(self, condition: Any) -> None:
        """Set the condition of the following forward passes."""
        self._condition = condition

    def forward(self, x: Tensor, condition: Any = None) -> Tensor:
        """Fit the new norm in the first call, and return the concatenated outputs of the old and the new norm.

        Raises:
            SurgeryError: if the two halves of the batch do not correspond.
        """
        condition = self._condition if condition is None else condition
        halves = x.chunk(2)
        if len(halves) != 2 or len(halves[0]) != len(halves[1]) or (self.is_first[0] and not torch.equal(*halves)):
            raise SurgeryError(
                f"fit= runs every sample twice in one batch, and at '{self.conversion.path}' the two halves of the batch do not "
                "correspond: the model reorders the samples or adds some. Convert without fit=, and train."
            )
        self.is_first[0] = False
        (old, new), (x_old, x_new) = self.norms, halves
        condition_old, condition_new = _half(condition, 0), _half(condition, 1)
        target = old.normalize(x_old, condition_old)
        fitted = new.normalize(x_new, condition_new)
        if not self.calls:
            fitted = _solve(new, x_new, condition_new, fitted, target, self.conversion)
        self.calls += 1
        y = torch.cat([target, fitted])
        y = y if new.activation is None else new.activation(y)
        for name in new.post_modules:
            y = getattr(new, name)(y)
        return y


def _half(condition: Any, index: int) -> Any:
    def half(tensor: Tensor) -> Tensor:
        return tensor.chunk(2)[index] if tensor.dim() and len(tensor) > 1 else tensor

    return tree_map_only(Tensor, half, condition)


def _set_running_stats(norm: Norm, x: Tensor, condition: Any) -> None:
    """Set the running statistics of a norm to the statistics of x."""
    if not norm.has_running_stats or isinstance(norm.update_rule, Frozen) or norm.norm_spec.num_stat_sets:
        return
    update_rule, batches = norm.update_rule, norm.num_batches_tracked
    old_batches = None if batches is None else batches.clone()
    try:
        norm.update_rule, norm.schedule_enabled = Running(1.0), False
        norm.train()
        norm.normalize(x, condition)
    finally:
        norm.eval()
        norm.update_rule, norm.schedule_enabled = update_rule, True
        if batches is not None and old_batches is not None:
            batches.copy_(old_batches)


def _solve(norm: Norm, x: Tensor, condition: Any, y: Tensor, target: Tensor, conversion: Conversion) -> Tensor:
    """Set γ and β by least squares, and add the relative errors ‖y − target‖ / ‖target‖ before and after to the report.

    A norm whose error is below `GOOD_FIT`, or that has no shared γ, is not changed.

    Args:
        norm: the new norm.
        x: its input.
        condition: its condition.
        y: its output.
        target: the output of the old norm.
        conversion: the row of the report.

    Returns:
        The output of the fitted norm.
    """
    error = conversion.error_before = conversion.error_after = _error(y, target)
    weight, bias = norm._parameters.get("weight"), norm._parameters.get("bias")
    if weight is None:
        conversion.notes.append("not fitted: no shared γ and β")
        return y
    if error < GOOD_FIT:
        return y
    _set_running_stats(norm, x, condition)
    if isinstance(norm, PointwiseNorm):
        conversion.notes.append(fit_pointwise(norm, *(to_channels_second(tensor, norm.channel_axis) for tensor in (x, target))))
    outputs = [_output(norm, (weight, bias), values, x, condition) for values in ((0, 0), (1, 0), (0, 1))]
    views = [to_channels_second(tensor, norm.channel_axis) for tensor in (target, *outputs)]
    uu, uv, vv, ur, vr = _normal_equations(*views)
    vv = vv.clamp(min=RIDGE)
    variance = uu - uv * uv / vv
    gamma = (ur - uv * vr / vv) / (variance + (RIDGE * variance.mean()).clamp(min=MIN_RIDGE))
    weight.copy_(gamma)
    if bias is not None:
        bias.copy_((vr - gamma * uv) / vv)
    y = norm.normalize(x, condition)
    conversion.error_after = _error(y, target)
    return y


def _output(norm: Norm, affine: tuple[Tensor, Tensor | None], values: tuple[int, int], x: Tensor, condition: Any) -> Tensor:
    """Return the output of a norm for constant γ and β."""
    for tensor, value in zip(affine, values, strict=True):
        if tensor is not None:
            tensor.fill_(value)
    return norm.normalize(x, condition)


def _normal_equations(target: Tensor, at_zero: Tensor, at_weight: Tensor, at_bias: Tensor) -> Tensor:
    """Return the means of u², u v, v², u r and v r per channel, in float64, of tensors with channels in axis 1.

    u and v are the factors of γ and β (x̂ and 1; in a sandwich, times the γ of the class; v is 0 without β), and r is the target
    minus the output for γ = β = 0.
    """
    total = torch.zeros(5, target.shape[1], dtype=torch.float64, device=target.device)
    tensors = (target, at_zero, at_weight, at_bias)
    for parts in zip(*(torch.split(tensor, SAMPLES_AT_ONCE) for tensor in tensors), strict=True):
        t, zero, one, shifted = (part.double().transpose(0, 1).flatten(1) for part in parts)
        u, v, r = one - zero, shifted - zero, t - zero
        total += torch.stack([torch.linalg.vecdot(a, b) for a, b in ((u, u), (u, v), (v, v), (u, r), (v, r))])
    return total / (target.numel() // target.shape[1])


def _error(y: Tensor, target: Tensor) -> float:
    return float((y - target).norm() / target.norm().clamp(min=1e-12))


def fit_norms(model: nn.Module, norms: dict[NormSite, Norm], fit: Calibration, conversions: list[Conversion]) -> None:
    """Fit γ and β of new norms that are already part of a model.

    Args:
        model: the model with the new norms.
        norms: the new norm of each site.
        fit: the calibration batches.
        conversions: the rows of the report, to which the errors before and after the fit are added.

    Raises:
        SurgeryError: if fit has no batch, if the batch reaches none of the norms, or if the model reorders samples.
    """
    batch = gather(fit.data)
    conversion_of = {conversion.path: conversion for conversion in conversions}
    is_first = [True]
    with preserve_modes({*model.modules(), *norms.values()}), torch.no_grad():
        fitting = {
            site: FittingNorm((make_equivalent(site).eval(), norm.eval()), conversion_of[site.path], is_first)
            for site, norm in norms.items()
        }
        root: nn.Module = next((module for site, module in fitting.items() if not site.parents), model)
        with temporary_changes() as undo_log:
            for site, module in fitting.items():
                undo_log.replace(replace(site, module=norms[site]), module.eval())
            fit.forward(root.eval(), duplicate(batch))
    if not any(module.calls for module in fitting.values()):
        raise SurgeryError("The calibration batch reached none of the new norms; nothing was changed.")
    for site, module in fitting.items():
        if module.calls != 1:
            note = "fitted on the first of its calls only" if module.calls else "not fitted: the batch did not reach it"
            conversion_of[site.path].notes.append(note)
