"""Folding of norms into the layers around them, for inference.

Fixed statistics (`anynorm.surgery.fold_statistics`): the whole norm goes into the convolution or linear layer before or after it.
Statistics of each input (`anynorm.surgery.fold_affine`): γ and β go into the layers that read its output; the norm stays without.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from anynorm.errors import FoldError, SurgeryError
from anynorm.layers.conditioning import condition as set_condition
from anynorm.surgery.batches import Forward
from anynorm.surgery.dataflow import trace_example
from anynorm.surgery.find import NormSite, Where, check_model, choose, find_norms
from anynorm.surgery.fold_affine import AffinePlan, plan_affine
from anynorm.surgery.fold_statistics import LAYERS, StatisticsPlan, not_fixed_reason, plan_statistics
from anynorm.surgery.output_change import Run, call_with_inputs, describe, is_rounding, output_change
from anynorm.surgery.report import SurgeryReport
from anynorm.surgery.tensor_graph import record_graph
from anynorm.surgery.undo import UndoLog, all_or_nothing, temporary_changes

Plan = StatisticsPlan | AffinePlan


def fold(
    model: nn.Module, example: Any, where: Where = None, *, condition: Any = None, forward: Forward | None = None
) -> SurgeryReport:
    """Fold norms into the layers around them, in place, for inference.

    A norm with fixed statistics disappears in the layer before or after it. γ and β of a norm with statistics of each input, such
    as the LayerNorm of a transformer, go into the linear layers and convolutions that read its output.

    Args:
        model: the model.
        example: an input of the model, or a tuple of inputs; a list of images, or of dictionaries with an image, is one input.
            The model runs on it to find the layers around each norm, and again to compare the outputs.
        where: which norms to fold, as in `convert`; None for all.
        condition: the class or domain for which conditional norms are folded; also the condition of the runs on the example.
        forward: a function `forward(model, example)` that calls the model; None to call it with the input or inputs.

    Returns:
        A report with one row per norm; the column `note` says if only γ and β were folded, or why a norm was not folded.

    Raises:
        SurgeryError: if the model has no norm, or if folding changes the output. The model is unchanged.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.GroupNorm(2, 8), nn.Conv2d(8, 4, 1)).eval()
    >>> report = fold(model, torch.randn(1, 3, 8, 8))
    >>> report["1"]["into"], report["3"]["into"], report["3"]["note"]
    ('0', '4', 'only γ and β: the statistics of gn:2 come from each input, so no fixed (a, b) exists')
    """
    check_model(model)
    with nullcontext() if condition is None else set_condition(model, condition, strict=False):
        return _fold(model, lambda model: (forward or call_with_inputs)(model, example), where, condition)


def _fold(model: nn.Module, run: Run, where: Where, condition: Any) -> SurgeryReport:
    sites = choose(find_norms(model), where)
    if not sites:
        raise SurgeryError(f"This {type(model).__name__} has no norm that anynorm recognizes: there is nothing to fold.")
    plans, reasons, output = _plan(sites, model, run, condition)
    paths = {module: path for path, module in model.named_modules()}
    with all_or_nothing() as undo_log, torch.no_grad():
        _apply(plans, undo_log)
        change = output_change(model, run, output)
        # A layer may be a subclass that does more than its base class, such as a weight-standardized convolution; this shows only
        # in the output of the model. All norms are folded at once; if the output changes, each norm is tested separately.
        if not is_rounding(model, change, output):
            undo_log.undo()
            for site in [site for site, plan in plans.items() if not _is_exact({site: plan}, model, run, output)]:
                reasons[site] = f"not folded: folding it into '{plans.pop(site).into(paths)}' would change the output"
            _apply(plans, undo_log)
            change = output_change(model, run, output)
        if not is_rounding(model, change, output):
            raise SurgeryError(f"Folding changed the output by {change:.2g} of its largest value; nothing was changed.")
    rows = [_row(site, plans.get(site), paths, reasons.get(site, "")) for site in sites]
    return SurgeryReport(rows, _finding(list(plans.values()), len(rows), describe(change, output)), model, undo_log.undo)


def _plan(
    sites: list[NormSite], model: nn.Module, run: Run, condition: Any
) -> tuple[dict[NormSite, Plan], dict[NormSite, str], Any]:
    """Return the plan for each norm that can be folded, the reason for each other norm, and the output of the model."""
    layers: list[nn.Module] = [module for module in model.modules() if isinstance(module, LAYERS)]
    trace, output = trace_example(model, run, [*layers, *(site.module for site in sites)])
    plans: dict[NormSite, Plan] = {}
    reasons: dict[NormSite, str] = {}
    for site in sites:
        try:
            plans[site] = plan_statistics(site, trace, layers, condition)
        except FoldError as error:
            reasons[site] = f"not folded: {error}"
    not_fixed = {site: reason for site in sites if not site.unsupported and (reason := not_fixed_reason(site))}
    if not not_fixed:
        return plans, reasons, output
    graph = record_graph(model, run, [site.module for site in sites])
    for site, reason in not_fixed.items():
        try:
            plans[site] = plan_affine(site, graph)
            reasons[site] = f"only γ and β: {reason}"
        except FoldError as error:
            reasons[site] = f"not folded: {reason}; γ and β stay: {error}"
    return plans, reasons, output


def _row(site: NormSite, plan: Plan | None, paths: dict[nn.Module, str], note: str) -> dict[str, Any]:
    row: dict[str, Any] = {"path": site.path, "norm": site.label if site.unsupported else site.info.spec}
    where = (
        {"into": None, "layer_position": None} if plan is None else {"into": plan.into(paths), "layer_position": plan.position}
    )
    return row | where | ({"note": note} if note else {})


def _finding(plans: list[Plan], total: int, effect: str) -> str:
    """Return the finding: how many norms are folded, and of how many others γ and β."""
    affine = sum(isinstance(plan, AffinePlan) for plan in plans)
    of_others = f", γ and β of {affine} others" if affine else ""
    return f"{len(plans) - affine} of {total} norms folded{of_others}; {effect}."


def _apply(plans: dict[NormSite, Plan], undo_log: UndoLog) -> None:
    for site, plan in plans.items():
        plan.apply(site, undo_log)


def _is_exact(plans: dict[NormSite, Plan], model: nn.Module, run: Run, output: Any) -> bool:
    """Whether folding does not change the output."""
    with temporary_changes() as undo_log:
        _apply(plans, undo_log)
        return is_rounding(model, output_change(model, run, output), output)
