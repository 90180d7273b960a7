"""Folding of norms with fixed statistics, y = A x + B per channel, into the convolution or linear layer before or after them.

layer, then norm      W ← A W          c ← A c + B
norm, then layer      W ← W A          c ← c + W B        not if the layer pads with zeros: the padding would have to be B

W and c are the weight and bias of the layer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anynorm import kernels
from anynorm.core.activation import Activation
from anynorm.errors import FoldError, SurgeryError
from anynorm.layers.channel_axis import resolve_axis
from anynorm.layers.conditioning import condition as set_condition
from anynorm.layers.norm import Norm
from anynorm.surgery.batches import Forward, call, is_one_input
from anynorm.surgery.dataflow import Trace, tensors_of, trace_example
from anynorm.surgery.find import NormSite, Where, check_model, choose, find_norms
from anynorm.surgery.new_norm import copy_hooks_and_parametrizations, make_equivalent
from anynorm.surgery.report import SurgeryReport
from anynorm.surgery.undo import UndoLog, all_or_nothing, temporary_changes

Run = Callable[[nn.Module], Any]
LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)
# Maximum change of the output, relative to its largest absolute value; a larger change is not a rounding error.
TOLERANCE = {torch.bfloat16: 0.1, torch.float16: 0.02}
DEFAULT_TOLERANCE = 1e-3


class FoldPlan(NamedTuple):
    """The layer into which a norm is folded, its position ("before" or "after" the norm), and A and B of the norm."""

    layer: nn.Module
    position: str
    scale: Tensor
    shift: Tensor


def fold(
    model: nn.Module, example: Any, where: Where = None, *, condition: Any = None, forward: Forward | None = None
) -> SurgeryReport:
    """Fold norms into the layers before or after them, in place, for inference.

    Args:
        model: the model.
        example: an input of the model, or a tuple of inputs; a list of images, or of dictionaries with an image, is one input.
            The model runs on it to find the layers next to each norm, and again to compare the outputs.
        where: which norms to fold, as in `convert`; None for all.
        condition: the class or domain for which conditional norms are folded; also the condition of the runs on the example.
        forward: a function `forward(model, example)` that calls the model; None to call it with the input or inputs.

    Returns:
        A report with one row per norm; the column `note` has the reason if a norm was not folded.

    Raises:
        SurgeryError: if the model has no norm, or if folding changes the output. The model is unchanged.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.GroupNorm(2, 8)).eval()
    >>> report = fold(model, torch.randn(1, 3, 8, 8))
    >>> report["1"]["into"], report["3"]["note"]
    ('0', 'not folded: no convolution or linear layer is directly before or after it')
    """
    check_model(model)
    with nullcontext() if condition is None else set_condition(model, condition, strict=False):
        return _fold(model, lambda model: (forward or call_with_inputs)(model, example), where, condition)


def call_with_inputs(model: nn.Module, example: Any) -> Any:
    """Call a model with one input, or with a tuple of inputs, which has no labels, unlike a batch of a data loader."""
    several = isinstance(example, tuple | list) and not is_one_input(example)
    return model(*example) if several else call(model, example)


def _fold(model: nn.Module, run: Run, where: Where, condition: Any) -> SurgeryReport:
    sites = choose(find_norms(model), where)
    if not sites:
        raise SurgeryError(f"This {type(model).__name__} has no norm that anynorm recognizes: there is nothing to fold.")
    layers: list[nn.Module] = [module for module in model.modules() if isinstance(module, LAYERS)]
    trace, output = trace_example(model, run, [*layers, *(site.module for site in sites)])
    paths = {id(module): path for path, module in model.named_modules()}
    plans: dict[NormSite, FoldPlan] = {}
    reasons: dict[NormSite, str] = {}
    for site in sites:
        try:
            plans[site] = _plan(site, trace, layers, condition)
        except FoldError as error:
            reasons[site] = str(error)
    with all_or_nothing() as undo_log, torch.no_grad():
        _apply(plans, undo_log)
        # A layer may be a subclass that does more than its base class, such as a weight-standardized convolution; this shows only
        # in the output of the model. All norms are folded at once; if the output changes, each norm is tested separately.
        if not _same_output(model, run, output):
            undo_log.undo()
            for site in [site for site, plan in plans.items() if not _is_exact({site: plan}, model, run, output)]:
                reasons[site] = f"folding it into '{paths[id(plans.pop(site).layer)]}' would change the output"
            _apply(plans, undo_log)
        change = _output_change(model, run, output)
        if not _same_output(model, run, output):
            raise SurgeryError(f"Folding changed the output by {change:.2g} of its largest value; nothing was changed.")
    rows = [_row(site, plans.get(site), paths, reasons.get(site, "")) for site in sites]
    compared = any(tensor.is_floating_point() and tensor.numel() for tensor in tensors_of(output))
    effect = f"the output changed by {change:.1g} of its largest value" if compared else "the example has no output to compare"
    finding = f"{len(plans)} of {len(rows)} norms folded; {effect}."
    return SurgeryReport(rows, finding, model, undo_log.undo)


def _row(site: NormSite, plan: FoldPlan | None, paths: dict[int, str], reason: str) -> dict[str, Any]:
    row: dict[str, Any] = {"path": site.path, "norm": site.label if site.unsupported else site.info.spec}
    if plan is None:
        return row | {"into": None, "layer_position": None, "note": f"not folded: {reason}"}
    return row | {"into": paths[id(plan.layer)], "layer_position": plan.position}


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


def _apply(plans: dict[NormSite, FoldPlan], undo_log: UndoLog) -> None:
    for site, plan in plans.items():
        _absorb(plan, undo_log)
        undo_log.replace(site, Folded(site))


def _is_exact(plans: dict[NormSite, FoldPlan], model: nn.Module, run: Run, output: Any) -> bool:
    """Whether folding does not change the output."""
    with temporary_changes() as undo_log:
        _apply(plans, undo_log)
        return _same_output(model, run, output)


def _output_change(model: nn.Module, run: Run, output: Any) -> float:
    """Return the maximum absolute change of the output, relative to its largest absolute value.

    The change is infinite if the shape of the output has changed (possible for a detector), or which of its values are finite.
    """
    new_output = tensors_of(trace_example(model, run, [])[1])
    changes = [0.0]
    if [tensor.shape for tensor in new_output] != [tensor.shape for tensor in tensors_of(output)]:
        return float("inf")
    for old, new in zip(tensors_of(output), new_output, strict=True):
        if old.is_floating_point() and old.numel():
            finite = old.isfinite()
            size = old[finite].abs().max().clamp(min=1e-12) if bool(finite.any()) else 1.0
            change = (new[finite] - old[finite]).abs().max() / size if bool(finite.any()) else 0.0
            changes.append(float(change) if torch.equal(finite, new.isfinite()) else float("inf"))
    return max(changes)


def _same_output(model: nn.Module, run: Run, output: Any) -> bool:
    tolerances = [TOLERANCE.get(tensor.dtype, DEFAULT_TOLERANCE) for tensor in tensors_of(output)]
    return _output_change(model, run, output) <= max(tolerances, default=DEFAULT_TOLERANCE)


def _plan(site: NormSite, trace: Trace, layers: list[nn.Module], condition: Any) -> FoldPlan:
    """Return the plan for folding a norm; raise FoldError with the reason if it cannot be folded."""
    layer, position = _neighbor(site, trace, layers)
    plan = FoldPlan(layer, position, *_coefficients(site, condition))
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


def _coefficients(site: NormSite, condition: Any) -> tuple[Tensor, Tensor]:
    """Return A and B of y = A x + B per channel, in float64."""
    if site.unsupported:
        raise FoldError(site.unsupported)
    norm = site.module if isinstance(site.module, Norm) else make_equivalent(site)
    if reason := norm.not_foldable_reason():
        raise FoldError(reason)
    if norm.takes_condition and condition is None:
        raise FoldError("it is conditional; pass condition=…, the class or domain to fold for")
    return norm.fixed_affine(condition)


def _check_layer(plan: FoldPlan) -> None:
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


def _absorb(plan: FoldPlan, undo_log: UndoLog) -> None:
    """Multiply A and B into the weight and bias of a layer."""
    layer: Any = plan.layer
    scale, shift = plan.scale, plan.shift
    weight: Tensor = layer.weight.double()
    outputs = _channels(layer, "before")
    bias = torch.zeros(outputs, dtype=torch.float64, device=weight.device) if layer.bias is None else layer.bias.double()
    groups = getattr(layer, "groups", 1)
    if plan.position == "after":  # (out, in / groups, …)
        by_group = weight.reshape(groups, outputs // groups, weight.shape[1], -1)
        new_weight = by_group * scale.reshape(groups, 1, -1, 1)
        bias = bias + (by_group * shift.reshape(groups, 1, -1, 1)).sum((2, 3)).reshape(-1)
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
