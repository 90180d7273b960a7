"""Norms that have learned what they need become simpler ones with the same function.

merge     a sandwich becomes one affine a class                      (sabn)
harden    mixed cuts become the one with the largest weight          (sn sec. 2.1: "sparse SN")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from anynorm.core.mixing import Argmax
from anynorm.core.spec import NormSpec
from anynorm.errors import SurgeryError
from anynorm.layers.norm import Norm
from anynorm.surgery.find import Where, all_or_nothing, check_model, choose, find_norms
from anynorm.surgery.optimizer import move_optimizer
from anynorm.surgery.replace import copy_surroundings, fuse
from anynorm.surgery.report import Report

Shorten = Callable[[Norm], Norm | None]


def merge(model: nn.Module, where: Where = None, *, optimizer: Optimizer | None = None) -> Report:
    """Turn every sandwich of a shared and a class affine into one class affine, in place, with the same output."""
    return _settle(model, where, _merged, words=("sandwich", "merged"), optimizer=optimizer)


def harden(model: nn.Module, where: Where = None, *, optimizer: Optimizer | None = None) -> Report:
    """Turn every norm of mixed cuts into the cut of its largest weight, in place, dropping what is unused.

    Norms whose channel groups chose differently keep all cuts, with weights of 0 and 1.
    """
    return _settle(model, where, _hardened, words=("norm of mixed cuts", "hardened"), optimizer=optimizer)


def _settle(model: nn.Module, where: Where, shorten: Shorten, *, words: tuple[str, str], optimizer: Optimizer | None) -> Report:
    check_model(model)
    what, done = words
    rows: list[dict[str, Any]] = []
    changed = model
    with all_or_nothing() as ledger:
        for site in choose(find_norms(model), where):
            norm = shorten(site.module) if isinstance(site.module, Norm) else None
            if norm is not None and isinstance(site.module, Norm):
                fuse(norm, {name: getattr(site.module, name) for name in site.module.post_modules})
                copy_surroundings(site.module, norm)
                ledger.put(site, norm)
                if optimizer is not None:
                    move_optimizer(optimizer, [(site.module, norm)], ledger)
                changed = norm if not site.holders else changed
                rows.append({"path": site.path, "was": site.module.spec, "is": norm.spec})
    if not rows:
        raise SurgeryError(f"This {type(model).__name__} has no {what}: there is nothing to be {done}.")
    return Report(rows, f"{len(rows)} norm{'s' if len(rows) > 1 else ''} {done}.", changed, ledger.undo, model)


def _merged(norm: Norm) -> Norm | None:
    names = [stage.names for stage in norm.norm_spec.affine.stages]
    return norm.merge() if names == [("weight", "bias"), ("class_weight", "class_bias")] else None


def _hardened(norm: Norm) -> Norm | None:
    logits = {"mean": norm.mean_weight, "var": norm.var_weight}
    if norm.one_cut_per_channel or all(value is None for value in logits.values()):
        return None
    chosen = {side: _chosen(value) for side, value in logits.items()}
    if any(len(set(choice)) > 1 for choice in chosen.values()):
        parts = replace(norm.norm_spec, mixing=Argmax(norm.norm_spec.mixing.groups), custom=None, name="")
    else:
        mean, var = (norm.norm_spec.mean[chosen["mean"][0]],), (norm.norm_spec.var[chosen["var"][0]],)
        parts = NormSpec(mean, var, affine=norm.norm_spec.affine)
    return _rebuilt(norm, parts)


def _chosen(logits: Tensor | None) -> list[int]:
    """Give the cut of the largest λ, for each group of channels."""
    return [0] if logits is None else logits.reshape(-1, logits.shape[-1]).argmax(-1).tolist()


@torch.no_grad()
def _rebuilt(norm: Norm, parts: NormSpec) -> Norm:
    """Make a norm of other parts whose tensors are those of this one, where it has them."""
    like = next(iter([*norm.parameters(), *norm.buffers()]))
    new = Norm(
        parts,
        norm.num_features,
        eps=norm.eps,
        update_rule=norm.update_rule,
        track_running_stats=True,
        device=like.device,
        dtype=like.dtype if like.is_floating_point() else None,
    )
    for name, parameter in new.named_parameters():
        old = getattr(norm, name)
        parameter.copy_(old)
        parameter.requires_grad_(old.requires_grad and parameter.requires_grad)
    for index in new._kept if norm.has_running_stats else ():
        source = norm.cuts.index(new.cuts[index])
        for buffer, old in zip(new.running_stats(index), norm.running_stats(source), strict=True):
            if buffer is not None and old is not None:
                buffer.copy_(old)
    if new.num_batches_tracked is not None and norm.num_batches_tracked is not None:
        new.num_batches_tracked.copy_(norm.num_batches_tracked)
    new.sync_group = norm.sync_group
    return new.train(norm.training)
