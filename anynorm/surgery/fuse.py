"""Fusion of norms with the addition and activation after them: φ(norm(x) + residual) in one pass over x.

The blocks of a model (modules with children) are traced one by one with torch.fx, with their children as leaves. A block with a
fusable norm gets a subclass of its class, whose `forward` passes residual and activation to the norm. Its children, hooks and
state_dict stay.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from anynorm.errors import SurgeryError
from anynorm.layers.norm import Norm
from anynorm.surgery.batches import Forward
from anynorm.surgery.block_forward import BlockForward, Dependencies, add_to_norm, children_of, settings_of
from anynorm.surgery.equivalence import Change, Comparison, RunResult
from anynorm.surgery.find import NormSite, Where, check_model, choose, find_norms
from anynorm.surgery.fusable import called_paths, rewrite
from anynorm.surgery.fusion_plan import FusedBlock, Plan, block_label, make_plan
from anynorm.surgery.fusion_run import observe
from anynorm.surgery.output_change import call_with_inputs
from anynorm.surgery.report import FusionReport
from anynorm.surgery.undo import UndoLog, all_or_nothing, temporary_changes
from anynorm.table import pluralize

MAX_REASONS = 3
"""Number of reasons in the finding."""


def fuse(model: nn.Module, example: Any, where: Where = None, *, forward: Forward | None = None) -> FusionReport:
    """Fuse norms with the addition and activation after them, in place, for training and inference.

    Norms of torch and timm that are fused are replaced by anynorm layers with the same spec, parameters and running statistics.
    The state_dict keeps its keys.

    Args:
        model: the model.
        example: an input of the model, or a tuple of inputs, as in `fold`. The model runs on it in its current mode, forward and
            backward, before and after the change; all outputs, gradients and running statistics must be equal. Its state is
            restored.
        where: which norms to fuse, as in `convert`; None for all.
        forward: a function `forward(model, example)` that calls the model; None to call it with the input or inputs.

    Returns:
        A report with one row per norm: what is fused into it, the block, and the reason if nothing is fused. Its
        `not_fused` has the number of activations per reason, for those that are not fused.

    Raises:
        SurgeryError: if the model has no norm, if its tensors were made in torch.inference_mode(), or if fusion changes outputs,
            gradients or running statistics. The model is unchanged.

    >>> import torch
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.GroupNorm(2, 8))
    >>> print(fuse(model, torch.randn(2, 3, 8, 8)))  # doctest: +ELLIPSIS
    path  norm         fused  block             note
    1     BatchNorm2d  relu   the model itself
    4     GroupNorm                             not fused: no addition or activation follows it
    1 of 1 activation and 0 additions fused; outputs changed by ... of their largest value, gradients by ...
    """
    check_model(model)
    if any(tensor.is_inference() for tensor in chain(model.parameters(), model.buffers())):
        raise SurgeryError(
            f"The tensors of this {type(model).__name__} were made in torch.inference_mode(), so they have no gradients. "
            "Make the model outside of it."
        )
    with torch.inference_mode(mode=False):
        return _fuse(model, tree_map_only(Tensor, _without_inference_mode, example), where, forward or call_with_inputs)


def _without_inference_mode(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.is_inference() else tensor


def _fuse(model: nn.Module, example: Any, where: Where, run: Forward) -> FusionReport:
    sites = choose(find_norms(model), where)
    if not sites:
        raise SurgeryError(f"This {type(model).__name__} has no norm that anynorm recognizes: there is nothing to fuse.")
    comparison = Comparison(model, run, example)
    plan = make_plan(model, sites)
    calls = observe(model, run, example, plan)
    _rewrite(plan)
    with all_or_nothing() as undo_log:
        _apply(plan, undo_log)
        change = comparison.change()
        if not change.is_rounding:
            # Rounding may change single gradients by any amount: at a ReLU near zero, or between equal values in a max pooling.
            undo_log.undo()
            comparison = Comparison(model, run, example, float64=True)
            change = _apply_unchanging(plan, undo_log, comparison)
        if not change.is_rounding:
            raise SurgeryError(
                f"Fusion changed outputs by {change.outputs:.2g} of their largest value, gradients by {change.gradients:.2g} and "
                f"running statistics by {change.buffers:.2g}; nothing was changed."
            )
    rows = [_row(site, plan) for site in sites]
    not_fused = dict(calls.reasons(plan).most_common())
    finding = _finding(plan, len(calls.sources), comparison.original, change) + _summary(not_fused)
    return FusionReport(rows, finding, model, undo_log.undo, not_fused=not_fused)


def _rewrite(plan: Plan) -> None:
    """Make the new forward of each block."""
    for block in plan.blocks:
        norms = [str(pattern.norm.target) for pattern in block.patterns]
        unused = {path: block.module.get_submodule(path) for pattern in block.patterns for path in pattern.unused}
        settings = {path: (type(module), settings_of(module)) for path, module in unused.items()}
        trace = block.trace
        needed = Dependencies(trace.arguments, block.types, trace.attributes, _children(block), norms, settings)
        constants = rewrite(trace.graph, block.patterns, add_to_norm)
        block.forward = BlockForward(type(block.module), trace.graph, needed, constants)


def _children(block: FusedBlock) -> dict[str, list[str]]:
    """Return the children of a block and of the containers whose children it calls itself, by path."""
    called = {name.rpartition(".")[0] for name in called_paths(block.trace.graph)}
    modules = dict(block.module.named_modules())
    lists = {path for path, module in block.module.named_children() if isinstance(module, nn.ModuleList | nn.ModuleDict)}
    return {path: children_of(modules[path]) for path in sorted({"", *called, *lists} & modules.keys())}


def _apply(plan: Plan, undo_log: UndoLog) -> None:
    for site in dict.fromkeys([*plan.activations, *(site for block in plan.blocks for site in block.sites)]):
        norm = plan.norms.get(site, site.module)
        assert isinstance(norm, Norm)  # other norms have an equivalent layer
        if norm is not site.module:
            undo_log.replace(site, norm)
        _remove_post_modules(norm, undo_log)
        if site in plan.activations:
            undo_log.set_attribute(norm, "activation", plan.activations[site])
    for block in plan.blocks:
        assert block.forward is not None  # made by _rewrite
        undo_log.set_class(block.module, block.forward.block_class)


def _remove_post_modules(norm: Norm, undo_log: UndoLog) -> None:
    """Remove the post modules of a norm: identities, and the activation that the norm applies itself from now on."""
    old = dict(norm._modules)

    def restore() -> None:
        norm._modules.clear()
        norm._modules.update(old)

    undo_log.undo_steps.append(restore)
    for name in norm.post_modules:
        del norm._modules[name]
    undo_log.set_attribute(norm, "post_modules", ())


def _apply_unchanging(plan: Plan, undo_log: UndoLog, comparison: Comparison) -> Change:
    """Apply a plan; if outputs, gradients or running statistics change, without the parts that change them when applied alone."""
    _apply(plan, undo_log)
    change = comparison.change()
    if change.is_rounding:
        return change
    undo_log.undo()
    for block in list(plan.blocks):
        if not _is_unchanging(Plan([block], norms=plan.norms), comparison):
            plan.blocks.remove(block)
            reason = f"fusion in block {block_label(block.path)} would change outputs, gradients or running statistics"
            plan.reasons |= dict.fromkeys(block.sites, reason)
    for site, activation in list(plan.activations.items()):
        if not _is_unchanging(Plan(activations={site: activation}, norms=plan.norms), comparison):
            plan.reasons[site] = "fusion would change outputs, gradients or running statistics"
            del plan.activations[site]
    _apply(plan, undo_log)
    return comparison.change()


def _is_unchanging(plan: Plan, comparison: Comparison) -> bool:
    with temporary_changes() as undo_log:
        _apply(plan, undo_log)
        return comparison.change().is_rounding


def _row(site: NormSite, plan: Plan) -> dict[str, Any]:
    row: dict[str, Any] = {"path": site.path, "norm": site.label}
    if site in plan.activations:
        return row | {"fused": [plan.activations[site].name], "block": None}
    for block in plan.blocks:
        for pattern, found in zip(block.patterns, block.sites, strict=True):
            if found is site:
                return row | {"fused": pattern.operations, "block": block.path or "the model itself"}
    return row | {"fused": [], "block": None, "note": f"not fused: {plan.reasons[site]}"}


def _finding(plan: Plan, total: int, original: RunResult, change: Change) -> str:
    fused = [(block.calls, pattern) for block in plan.blocks for pattern in block.patterns]
    activations = sum(calls for calls, pattern in fused if pattern.activation) + sum(
        plan.calls[site] for site in plan.activations
    )
    additions = sum(calls for calls, pattern in fused if pattern.addition)
    gradients = f"gradients by {change.gradients:.1g}"
    if original.error or not original.gradients:
        gradients = f"gradients were not compared ({original.error or 'there are none'})"
    counts = f"{activations} of {pluralize(total, 'activation')} and {pluralize(additions, 'addition')} fused"
    return f"{counts}; outputs changed by {change.outputs:.1g} of their largest value, {gradients}."


def _summary(not_fused: dict[str, int]) -> str:
    """Return the reasons of the activations that are not fused as a sentence; empty if there are none."""
    listed = [f"{count} ({reason})" for reason, count in list(not_fused.items())[:MAX_REASONS]]
    others = sum(list(not_fused.values())[MAX_REASONS:])
    return f" Activations not fused: {', '.join([*listed, *([f'{others} others'] if others else [])])}." if listed else ""
