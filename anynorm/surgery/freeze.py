"""Norms that stay as they are through `model.train()`: their statistics, their affine, or both."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from anynorm.core.update_rules import Frozen, Running, UpdateRule
from anynorm.errors import SurgeryError
from anynorm.layers.norm import Norm
from anynorm.surgery.adapters import NormInfo
from anynorm.surgery.find import NormSite, UndoLog, Where, all_or_nothing, check_model, choose, find_norms
from anynorm.surgery.replace import replacement, share_parameters
from anynorm.surgery.report import Report


def freeze(model: nn.Module, where: Where = None, *, statistics: bool = True, affine: bool = True) -> Report:
    """Freeze norms, in place: train mode normalises by what is kept, and γ, β and λ take no gradient.

    torch's norms become ours where their statistics are frozen: theirs would look at the batch again after `model.train()`.
    """
    return _set(model, where, statistics=statistics, affine=affine, frozen=True)


def unfreeze(model: nn.Module, where: Where = None, *, statistics: bool = True, affine: bool = True) -> Report:
    """Let frozen norms learn again, in place; each keeps statistics as it did before it was frozen."""
    return _set(model, where, statistics=statistics, affine=affine, frozen=False)


def _set(model: nn.Module, where: Where, *, statistics: bool, affine: bool, frozen: bool) -> Report:
    check_model(model)
    if not (statistics or affine):
        raise SurgeryError("Nothing is asked for: statistics and affine are both False.")
    found = choose(find_norms(model), where)
    sites = [site for site in found if isinstance(site.reading, NormInfo)]
    if not sites:
        raise SurgeryError(f"This {type(model).__name__} has no norm that is known.")
    rows: list[dict[str, Any]] = []
    changed = model
    with all_or_nothing() as ledger:
        for site in sites:
            done = []
            norm = site.module
            if statistics and isinstance(site.reading, NormInfo) and site.reading.running_stats:
                norm = _ours(site, ledger) if frozen else norm
                if isinstance(norm, Norm) and isinstance(norm.update_rule, Frozen) != frozen:
                    _set_policy(norm, frozen, ledger)
                    done.append("statistics")
            if statistics and isinstance(norm, Norm) and norm.schedule_enabled == frozen:
                ledger.backs.append(lambda norm=norm: setattr(norm, "schedule_enabled", frozen))  # type: ignore[misc]
                norm.schedule_enabled = not frozen
            if affine:
                done += _set_affine(norm, not frozen, ledger)
            changed = norm if not site.holders else changed
            rows.append({"path": site.path, "norm": type(norm).__name__, "changed": done})
    rows += [{"path": site.path, "norm": type(site.module).__name__, "left": site.reading} for site in found if site not in sites]
    count = sum(bool(row.get("changed")) for row in rows)
    return Report(rows, f"{count} of {len(rows)} norms {'frozen' if frozen else 'learn again'}.", changed, ledger.undo, model)


def _ours(site: NormSite, ledger: UndoLog) -> Norm:
    """Give a site's norm, made ours if it is torch's."""
    if isinstance(site.module, Norm):
        return site.module
    norm, _, _ = replacement(site, site.info, site.info.spec, {})
    share_parameters(site.module, norm)
    ledger.put(site, norm)
    return norm


def _set_policy(norm: Norm, frozen: bool, ledger: UndoLog) -> None:
    before = norm.update_rule
    earlier: UpdateRule = getattr(norm, "before_freezing", Running())
    ledger.backs.append(lambda: setattr(norm, "update_rule", before))
    if frozen:
        norm.before_freezing = before  # type: ignore[assignment]
    norm.update_rule = Frozen() if frozen else earlier


def _set_affine(module: nn.Module, learns: bool, ledger: UndoLog) -> list[str]:
    changed = []
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.requires_grad != learns and not (learns and _is_fixed(module, name)):
            ledger.backs.append(lambda parameter=parameter: parameter.requires_grad_(not learns))  # type: ignore[misc]
            parameter.requires_grad_(learns)
            changed.append(name)
    return changed


def _is_fixed(module: nn.Module, name: str) -> bool:
    """Whether a parameter never learns: λ of a norm that takes the largest alone."""
    return isinstance(module, Norm) and name in ("mean_weight", "var_weight") and not module.norm_spec.mixing.learns


def split_decay(model: nn.Module, weight_decay: float, *, biases: bool = False) -> list[dict[str, Any]]:
    """Give parameter groups for an optimizer: norms and switches without weight decay, everything else with it.

    Args:
        biases: leave biases of other layers without decay too.

    >>> import anynorm
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), anynorm.make("sn", 8))
    >>> [(len(group["params"]), group["weight_decay"]) for group in split_decay(model, 1e-4)]
    [(2, 0.0001), (4, 0.0)]
    """
    norms = {id(parameter) for site in find_norms(model) for parameter in site.module.parameters(recurse=False)}
    parametrized = {
        id(parameter)
        for site in find_norms(model)
        if hasattr(site.module, "parametrizations")
        for parameter in site.module.parametrizations.parameters()  # type: ignore[union-attr]
    }
    plain: list[torch.nn.Parameter] = []
    bare: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_bare = id(parameter) in norms | parametrized or (biases and name.rpartition(".")[2] == "bias")
        (bare if is_bare else plain).append(parameter)
    return [{"params": plain, "weight_decay": weight_decay}, {"params": bare, "weight_decay": 0.0}]
