"""Freezing of the running statistics and affine of norms, and optimizer parameter groups without weight decay for norms."""

from __future__ import annotations

from typing import Any

from torch import nn

from anynorm.core.update_rules import Frozen, Running
from anynorm.errors import SurgeryError
from anynorm.layers.norm import Norm
from anynorm.surgery.find import NormSite, Where, check_model, choose, find_norms
from anynorm.surgery.new_norm import make_equivalent, share_parameters
from anynorm.surgery.report import SurgeryReport
from anynorm.surgery.undo import UndoLog, all_or_nothing


def freeze(model: nn.Module, where: Where = None, *, statistics: bool = True, affine: bool = True) -> SurgeryReport:
    """Freeze norms, in place; `model.train()` does not unfreeze them.

    Args:
        model: the model.
        where: which norms to freeze, as in `convert`; None for all.
        statistics: whether to freeze the running statistics: they are used in train mode too, and not updated. Norms of torch
            are replaced by anynorm layers, because `model.train()` would make them use batch statistics again.
        affine: whether to freeze γ, β and λ (`requires_grad=False`).

    Returns:
        A report with one row per norm; the column `changed` lists the frozen parameters and statistics.

    Raises:
        SurgeryError: if the model has no norm that can be frozen. The model is unchanged.

    >>> print(freeze(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))))
    path  norm         changed
    1     BatchNorm2d  running statistics, weight, bias
    1 of 1 norms frozen.
    """
    return _set_frozen(model, where, statistics=statistics, affine=affine, frozen=True)


def unfreeze(model: nn.Module, where: Where = None, *, statistics: bool = True, affine: bool = True) -> SurgeryReport:
    """Unfreeze norms, in place; running statistics get the update rule they had before `freeze`.

    Args:
        model: the model.
        where: which norms to unfreeze, as in `convert`; None for all.
        statistics: whether to unfreeze the running statistics.
        affine: whether to unfreeze γ, β and λ (`requires_grad=True`).

    Returns:
        A report with one row per norm; the column `changed` lists the unfrozen parameters and statistics.

    Raises:
        SurgeryError: if the model has no norm that can be unfrozen. The model is unchanged.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> _ = freeze(model)
    >>> print(unfreeze(model, affine=False))
    path  norm  changed
    1     bn    running statistics
    1 of 1 norms unfrozen.
    """
    return _set_frozen(model, where, statistics=statistics, affine=affine, frozen=False)


def _set_frozen(model: nn.Module, where: Where, *, statistics: bool, affine: bool, frozen: bool) -> SurgeryReport:
    check_model(model)
    if not (statistics or affine):
        raise SurgeryError("At least one of statistics and affine must be True; got False for both.")
    sites = choose(find_norms(model), where)
    if all(site.unsupported for site in sites):
        raise SurgeryError(f"This {type(model).__name__} has no norm that anynorm supports.")
    rows: list[dict[str, Any]] = []
    result = model
    with all_or_nothing() as undo_log:
        for site in sites:
            if site.unsupported:
                rows.append({"path": site.path, "norm": site.label, "changed": [], "note": f"not changed: {site.unsupported}"})
                continue
            # γ and β of a FrozenBatchNorm2d are buffers, which cannot be trained
            norm = _as_anynorm(site, undo_log) if _is_frozen(site) and not frozen else site.module
            changed: list[str] = []
            if statistics:
                norm, changed = _set_statistics_frozen(site, norm, frozen=frozen, undo_log=undo_log)
            if affine:
                changed += _set_requires_grad(norm, not frozen, undo_log)
            result = result if site.parents else norm
            rows.append({"path": site.path, "norm": site.label, "changed": changed})
    count = sum(bool(row["changed"]) for row in rows)
    finding = f"{count} of {len(rows)} norms {'frozen' if frozen else 'unfrozen'}."
    return SurgeryReport(rows, finding, result, undo_log.undo, model)


def _is_frozen(site: NormSite) -> bool:
    """Whether the running statistics of a norm are frozen."""
    return isinstance(site.info.update_rule, Frozen)


def _set_statistics_frozen(site: NormSite, norm: nn.Module, *, frozen: bool, undo_log: UndoLog) -> tuple[nn.Module, list[str]]:
    """Freeze or unfreeze running statistics and schedule; return the norm (a replacement if it was torch's) and the changes."""
    changed = []
    if site.info.running_stats and _is_frozen(site) != frozen:
        norm = _as_anynorm(site, undo_log) if frozen else norm
        old_rule: Any = norm.update_rule
        undo_log.set_attribute(norm, "update_rule", Frozen() if frozen else getattr(norm, "before_freezing", Running()))
        if frozen:
            norm.before_freezing = old_rule
        changed = ["running statistics"]
    if isinstance(norm, Norm) and norm.schedule_enabled == frozen:
        undo_log.set_attribute(norm, "schedule_enabled", not frozen)
    return norm, changed


def _as_anynorm(site: NormSite, undo_log: UndoLog) -> Norm:
    """Return the norm of a site; replace it by an anynorm layer with the same parameters first if it is not one."""
    if isinstance(site.module, Norm):
        return site.module
    norm = make_equivalent(site)
    share_parameters(site.module, norm)
    undo_log.replace(site, norm)
    return norm


def _set_requires_grad(module: nn.Module, requires_grad: bool, undo_log: UndoLog) -> list[str]:
    """Set requires_grad of the parameters of a norm, and return the names of the parameters that changed."""
    changed = []
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.requires_grad != requires_grad and not (requires_grad and _is_fixed(module, name)):
            undo_log.set_attribute(parameter, "requires_grad", requires_grad)
            changed.append(name)
    return changed


def _is_fixed(module: nn.Module, name: str) -> bool:
    """Whether a parameter is never trained: λ of a norm with argmax weights."""
    return isinstance(module, Norm) and name in ("mean_weight", "var_weight") and not module.norm_spec.mixing.is_trainable


def split_decay(model: nn.Module, weight_decay: float, *, biases: bool = False) -> list[dict[str, Any]]:
    """Return two parameter groups for an optimizer: one with weight decay, and one without weight decay for the norms.

    Args:
        model: the model.
        weight_decay: weight decay of the first group.
        biases: whether to put the biases of all layers into the group without weight decay too.

    Returns:
        Two dictionaries with the keys `params` and `weight_decay`.

    >>> import anynorm
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), anynorm.make("sn", 8))
    >>> [(len(group["params"]), group["weight_decay"]) for group in split_decay(model, 1e-4)]
    [(2, 0.0001), (4, 0.0)]
    """
    in_norms: set[int] = set()
    for site in find_norms(model):
        parametrizations: Any = getattr(site.module, "parametrizations", nn.ModuleDict())
        parameters = [*site.module.parameters(recurse=False), *parametrizations.parameters()]
        in_norms |= {id(parameter) for parameter in parameters}
    with_decay: list[nn.Parameter] = []
    without_decay: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_bias = name.rpartition(".")[2] == "bias"
        group = without_decay if id(parameter) in in_norms or (biases and is_bias) else with_decay
        group.append(parameter)
    return [{"params": with_decay, "weight_decay": weight_decay}, {"params": without_decay, "weight_decay": 0.0}]
