"""Replacement of trained norms by simpler norms.

merge     replaces a sandwich affine by one affine per class, with the same output     (sabn)
harden    replaces mixed cuts by the cut with the largest weight                       (sn sec. 2.1: "sparse SN")

In sparse SN "each normalization layer selects only one normalizer", for mean and variance together: `harden(…, same_cut=True)`.
The network is fine-tuned afterwards.
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
from anynorm.surgery.find import Where, check_model, choose, find_norms
from anynorm.surgery.new_norm import copy_hooks_and_parametrizations, set_post_modules
from anynorm.surgery.optimizer import replace_in_optimizer
from anynorm.surgery.report import SurgeryReport
from anynorm.surgery.undo import all_or_nothing
from anynorm.table import pluralize

Simplify = Callable[[Norm], Norm | None]


def merge(model: nn.Module, where: Where = None, *, optimizer: Optimizer | None = None) -> SurgeryReport:
    """Merge the shared affine of every sandwich norm into its affine per class, in place; outputs stay the same.

    Args:
        model: the model.
        where: which norms to merge, as in `convert`; None for all.
        optimizer: optimizer in which the old parameters are replaced by the new ones, with their groups and state.

    Returns:
        A report with one row per replaced norm.

    Raises:
        SurgeryError: if the model has no norm with a sandwich affine. The model is unchanged.

    >>> import anynorm
    >>> print(merge(nn.Sequential(anynorm.make("sabn@10", 8))))
    path  norm     new_norm
    0     sabn@10  bn.cc@10
    1 norm merged.
    """
    return _simplify(model, where, _merge, words=("sandwich norm", "merge", "merged"), optimizer=optimizer)


def harden(model: nn.Module, where: Where = None, *, same_cut: bool = False, optimizer: Optimizer | None = None) -> SurgeryReport:
    """Replace every norm with mixed cuts by a norm with only the cut of the largest mixing weight, in place.

    Unused parameters and statistics are removed. If the largest weights of the channel groups of a norm belong to different cuts,
    the norm keeps all cuts, with weights of 0 and 1.

    Args:
        model: the model.
        where: which norms to harden, as in `convert`; None for all.
        same_cut: whether mean and variance use the same cut, that with the largest sum of both weights, as in sparse SN;
            otherwise a norm may become one of two cuts, such as in/bn.
        optimizer: optimizer in which the old parameters are replaced by the new ones, with their groups and state.

    Returns:
        A report with one row per replaced norm.

    Raises:
        SurgeryError: if the model has no norm with mixed cuts, or `same_cut` is set and the cuts of the mean of a norm are not
            those of its variance. The model is unchanged.

    >>> import anynorm
    >>> model = nn.Sequential(anynorm.make("sn", 8))
    >>> with torch.no_grad():
    ...     _ = model[0].mean_weight[2].fill_(3), model[0].var_weight[2].fill_(3)
    >>> print(harden(model))
    path  norm  new_norm
    0     sn    bn
    1 norm hardened.
    """
    simplify = _harden_jointly if same_cut else _harden
    return _simplify(model, where, simplify, words=("norm with mixed cuts", "harden", "hardened"), optimizer=optimizer)


def _simplify(
    model: nn.Module, where: Where, simplify: Simplify, *, words: tuple[str, str, str], optimizer: Optimizer | None
) -> SurgeryReport:
    """Replace every norm for which `simplify` returns a new norm; `words` are the kind of norm, the verb and its past tense."""
    check_model(model)
    kind, verb, past = words
    rows: list[dict[str, Any]] = []
    changed = model
    with all_or_nothing() as undo_log:
        for site in choose(find_norms(model), where):
            old = site.module
            new = simplify(old) if isinstance(old, Norm) else None
            if new is None or not isinstance(old, Norm):
                continue
            set_post_modules(new, {name: getattr(old, name) for name in old.post_modules})
            copy_hooks_and_parametrizations(old, new)
            undo_log.replace(site, new)
            if optimizer is not None:
                replace_in_optimizer(optimizer, [(old, new)], undo_log)
            changed = changed if site.parents else new
            rows.append({"path": site.path, "norm": old.spec, "new_norm": new.spec})
    if not rows:
        raise SurgeryError(f"This {type(model).__name__} has no {kind}: there is nothing to {verb}.")
    return SurgeryReport(rows, f"{pluralize(len(rows), 'norm')} {past}.", changed, undo_log.undo, model)


def _merge(norm: Norm) -> Norm | None:
    names = [stage.names for stage in norm.norm_spec.affine.stages]
    return norm.merge() if names == [("weight", "bias"), ("class_weight", "class_bias")] else None


def _harden(norm: Norm) -> Norm | None:
    if norm.one_cut_per_channel or (norm.mean_weight is None and norm.var_weight is None):
        return None
    norm_spec, mean, var = norm.norm_spec, _largest(norm.mean_weight), _largest(norm.var_weight)
    if len(set(mean)) > 1 or len(set(var)) > 1:
        return _rebuild(norm, replace(norm_spec, custom=None).with_mixing(Argmax(norm_spec.mixing.groups)))
    mean_cut = norm_spec.mean[mean[0] : mean[0] + 1]  # empty for a mean of 0
    return _rebuild(norm, NormSpec(mean_cut, (norm_spec.var[var[0]],), affine=norm_spec.affine))


@torch.no_grad()
def _harden_jointly(norm: Norm) -> Norm | None:
    """Return a norm with one cut for mean and variance: that with the largest sum of both weights, for each channel group."""
    if norm.one_cut_per_channel or (norm.mean_weight is None and norm.var_weight is None):
        return None
    norm_spec, mean, var = norm.norm_spec, norm.mixing_weights("mean"), norm.mixing_weights("var")
    if not norm_spec.mean:
        return _harden(norm)
    if norm_spec.mean != norm_spec.var or mean is None or var is None:
        raise SurgeryError(
            f"same_cut needs norms whose mean and variance mix the same cuts, such as sn; got {norm.spec}. "
            "The model is unchanged."
        )
    total = mean + var
    chosen = total.argmax(-1).tolist()
    if len(set(chosen)) == 1:
        cut = (norm_spec.mean[chosen[0]],)
        return _rebuild(norm, NormSpec(cut, cut, affine=norm_spec.affine))
    new = _rebuild(norm, replace(norm_spec, custom=None).with_mixing(Argmax(norm_spec.mixing.groups)))
    for logits in (new.mean_weight, new.var_weight):
        assert logits is not None  # both are mixed
        num_groups = logits.numel() // total.shape[-1]
        logits.copy_(total[:: len(total) // num_groups].reshape(logits.shape))
    return new


def _largest(logits: Tensor | None) -> list[int]:
    """Return the index of the cut with the largest λ, for each group of channels."""
    return [0] if logits is None else logits.reshape(-1, logits.shape[-1]).argmax(-1).tolist()


@torch.no_grad()
def _rebuild(norm: Norm, norm_spec: NormSpec) -> Norm:
    """Make a norm of another spec with the values of the tensors of this norm."""
    like = next(iter([*norm.parameters(), *norm.buffers()]))
    new = Norm(
        norm_spec,
        norm.num_features,
        eps=norm._eps,
        update_rule=norm.update_rule,
        track_running_stats=True,
        device=like.device,
        dtype=like.dtype if like.is_floating_point() else None,
        activation=norm.activation,
        channel_axis=norm.channel_axis,
    )
    for name, parameter in new.named_parameters():
        old = getattr(norm, name)
        parameter.copy_(old)
        parameter.requires_grad_(old.requires_grad and parameter.requires_grad)
    for index in new.tracked_cuts if norm.has_running_stats else ():
        old_index = norm.cuts.index(new.cuts[index])
        for buffer, old in zip(new.running_stats(index), norm.running_stats(old_index), strict=True):
            if buffer is not None and old is not None:
                buffer.copy_(old)
    if new.num_batches_tracked is not None and norm.num_batches_tracked is not None:
        new.num_batches_tracked.copy_(norm.num_batches_tracked)
    new.sync_group = norm.sync_group
    new.input_dims, new.unbatched_dims = norm.input_dims, norm.unbatched_dims
    return new.train(norm.training)
