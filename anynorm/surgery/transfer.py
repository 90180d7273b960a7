"""Transfer of tensors from an old norm to the norm that replaces it.

γ, β                 copied; rescaled if the old norm is bn and the new norm uses only running statistics in inference, so that
                     inference returns the same output; copied to every class of an affine per class; not transferred to a style
affine=False         the new norm has no affine either, unless its spec has one per class, or affine=True is given
class γ, β           copied if the numbers of classes are equal; a sandwich is merged if the new norm has no shared affine
running statistics   copied for the same cut; pooled exactly if the parts of the new cut are unions of the old parts
                     (bn → en, bgn, hn); copied to each domain and strip; var + mean² if the new mean is 0 (bn → 0/bn); not
                     transferred if the new cut is finer (en → bn), domains would be mixed, or only the old mean is 0
λ                    copied for the same cuts
others               copied between norms of the same kind (a gate, a schedule)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from anynorm.core.affine import chain, inverse_std
from anynorm.core.cuts import ALL, Cut
from anynorm.core.moments import Moments, about_zero
from anynorm.layers.norm import Norm
from anynorm.surgery.adapters import PARAMETER_NAMES
from anynorm.surgery.norm_info import NormInfo

_CLASS_AFFINE = ("class_weight", "class_bias")
_SHARED_AFFINE = ("weight", "bias")
_STATISTICS = "running statistics"


@dataclass
class Transfer:
    """Names of the tensors that were transferred from one norm to another, and of those that were not."""

    transferred: list[str] = field(default_factory=list)
    not_transferred: list[str] = field(default_factory=list)


@torch.no_grad()
def transfer(info: NormInfo, norm: Norm, *, parametrized: bool = False) -> Transfer:
    """Copy the tensors of an old norm into a new norm.

    Args:
        info: spec, tensors and settings of the old norm.
        norm: the new norm, changed in place.
        parametrized: whether γ or β has a parametrization, and so cannot be rescaled.

    Returns:
        The names of the tensors that were transferred, and of those that were not.
    """
    result = Transfer()
    transfer_affine(info, norm, result)
    _transfer_running_stats(info, norm, result)
    _transfer_mixing(info, norm, result)
    _transfer_class_specific(info, norm, result)
    if _STATISTICS in result.transferred:
        batches = info.tensors.get("num_batches_tracked")
        if batches is not None and norm.num_batches_tracked is not None:
            norm.num_batches_tracked.copy_(batches if batches.shape == norm.num_batches_tracked.shape else batches.max())
        if not parametrized and _rescale(info, norm):
            result.transferred[0] = f"{result.transferred[0]} rescaled"
    return result


def _rescale(info: NormInfo, norm: Norm) -> bool:
    """Rescale γ and β so that y = A x + B stays the same, if the old norm is bn and the new norm has fixed A and B too."""
    fixed = all(cut.pools_samples and cut.space == 1 for cut in norm.used_cuts())
    bn = Cut(1, ALL, 1)
    was_bn, is_bn = (norm_spec.mean == norm_spec.var == (bn,) for norm_spec in (info.norm_spec, norm.norm_spec))
    if not was_bn or is_bn or not fixed or norm.weight is None or norm.class_weight is not None:
        return False
    if norm.bias is None and norm.norm_spec.mean != (bn,):
        return False  # another mean needs a shift
    if info.norm_spec.num_stat_sets or norm.norm_spec.takes_style:
        return False  # A and B differ between domains or styles, γ and β do not
    mean, var = (table.double() for table in info.running_stats[bn] if table is not None)
    gamma = norm.weight.double()
    old_scale = gamma * inverse_std(var, info.eps)
    new_scale, new_shift = norm.fixed_affine(0 if norm.takes_condition else None)  # all domains start with the same statistics
    ratio = torch.where(new_scale != 0, old_scale / new_scale, 1.0)
    norm.weight.copy_(gamma * ratio)
    if norm.bias is not None:
        beta = norm.bias.double()
        norm.bias.copy_(beta - old_scale * mean + (beta - new_shift) * ratio)
    return True


def transfer_affine(info: NormInfo, norm: Norm, result: Transfer) -> None:
    """Copy γ and β of an old norm into a new norm, and add to `result` what was transferred."""
    tensors = info.tensors
    shared = [tensors[name] for name in _SHARED_AFFINE] if "weight" in tensors and "bias" in tensors else None
    if "weight" in tensors and shared is None:  # torch's bias=False
        shared = [tensors["weight"], torch.zeros_like(tensors["weight"], requires_grad=tensors["weight"].requires_grad)]
    per_class = [tensors[name] for name in _CLASS_AFFINE] if "class_weight" in tensors else None
    if shared is None and per_class is None:
        _reset_class_affine(norm)
        result.transferred.append("new γ, β" if norm.affine else "affine=False")
    elif norm.weight is None and norm.class_weight is None:
        result.not_transferred.append("γ, β")
    elif per_class is not None and (norm.class_weight is None or per_class[0].shape != norm.class_weight.shape):
        _fill(norm, _SHARED_AFFINE, shared)
        _reset_class_affine(norm)
        result.not_transferred.append("γ, β of the classes")
    else:
        _fill_affine(norm, shared, per_class)
        loses_bias = norm.bias is None and norm.class_bias is None and "bias" in tensors
        result.transferred.append("γ" if loses_bias else "γ, β")
        result.not_transferred += ["β"] if loses_bias else []


def _fill_affine(norm: Norm, shared: list[Tensor] | None, per_class: list[Tensor] | None) -> None:
    """Fill the affine of a norm; the old norm has equally many classes, or none."""
    if per_class is not None and shared is not None and norm.weight is None:
        is_trained = any(tensor.requires_grad for tensor in (*shared, *per_class))
        merged = chain((shared[0], shared[1]), (per_class[0], per_class[1]))
        per_class, shared = [tensor.requires_grad_(is_trained) for tensor in merged], None
    if per_class is not None:
        _fill(norm, _CLASS_AFFINE, per_class)
    elif norm.weight is None and shared is not None:
        _fill(norm, _CLASS_AFFINE, shared)
        shared = None
    else:
        _reset_class_affine(norm)
    _fill(norm, _SHARED_AFFINE, shared)


def _fill(norm: Norm, names: tuple[str, str], values: list[Tensor] | None) -> None:
    for name, value in zip(names, values or [], strict=False):
        tensor = getattr(norm, name)
        if tensor is not None:
            tensor.copy_(value.expand_as(tensor))
            tensor.requires_grad_(value.requires_grad)


def _reset_class_affine(norm: Norm) -> None:
    """Set the affine of each class to the identity, γ = 1 and β = 0."""
    if norm.class_weight is not None and norm.class_bias is not None:
        norm.class_weight.fill_(1)
        norm.class_bias.fill_(0)


def _transfer_running_stats(info: NormInfo, norm: Norm, result: Transfer) -> None:
    if not norm.has_running_stats:
        result.not_transferred += [_STATISTICS] if info.running_stats else []
        return
    cuts = norm.tracked_cuts
    tables = [_running_stats_of(info, norm, index) for index in cuts]
    if None in tables:
        reason = "recalibrate" if info.running_stats else "the old norm has none: recalibrate"
        result.not_transferred.append(f"{_STATISTICS} ({reason})")
        return
    for index, pair in zip(cuts, tables, strict=True):
        for buffer, table in zip(norm.running_stats(index), pair or (), strict=True):
            if buffer is not None:
                same_size = table.numel() == buffer.numel()
                buffer.copy_(table.reshape(buffer.shape) if same_size else table.reshape(-1).expand_as(buffer))
    result.transferred.append(_STATISTICS)


def _running_stats_of(info: NormInfo, norm: Norm, index: int) -> tuple[Tensor, Tensor] | None:
    """Return the mean and variance of a cut of the new norm, copied or pooled from the old norm; None if neither is possible."""
    cut, domains = norm.cuts[index], norm.norm_spec.num_stat_sets
    old_domains = info.norm_spec.num_stat_sets
    other_kind = info.norm_spec.soft_assignment != norm.norm_spec.soft_assignment  # modes and domains do not correspond
    if old_domains not in (0, domains) or (old_domains and other_kind):
        return None
    channel_parts = cut.channels or norm.num_features
    if norm.norm_spec.mean and not info.norm_spec.mean:
        return None
    for old, stats in sorted(info.running_stats.items(), key=lambda pair: pair[0] != cut):  # the same cut first
        mean, var = stats if norm.norm_spec.mean else _about_zero(info, stats)
        if mean is None and var is None:
            continue
        shape = (old_domains or 1, old.channels or norm.num_features, old.space)
        if (old.channels, old.space, old.crosses_channels) == (cut.channels, cut.space, cut.crosses_channels):
            zeros = next(table for table in (mean, var) if table is not None).new_zeros(())
            return zeros if mean is None else mean, zeros if var is None else var
        if mean is None or var is None or old.space != 1 or shape[1] % channel_parts:
            continue
        if cut.space == 1 or old == Cut(1, ALL, 1):  # each strip starts with the statistics of its channel
            means, variances = (table.double().reshape(shape).expand(-1, -1, cut.space) for table in (mean, var))
            pooled = cut.pool_channels(Moments(means, variances, torch.ones_like(means)))
            return pooled.mean, pooled.var
    return None


def _about_zero(info: NormInfo, stats: tuple[Tensor | None, Tensor | None]) -> tuple[Tensor | None, Tensor | None]:
    """Return the running statistics of a cut about zero; (None, None) if its mean or variance is unknown."""
    mean, var = stats
    if var is None or (mean is None and info.norm_spec.mean):
        return None, None
    mean = torch.zeros_like(var) if mean is None else mean
    return about_zero(Moments(mean, var, torch.ones_like(var)))[:2]


def _transfer_mixing(info: NormInfo, norm: Norm, result: Transfer) -> None:
    old, new = info.norm_spec, norm.norm_spec
    same_cuts = (old.mean, old.var, old.custom) == (new.mean, new.var, new.custom)
    weights = {name: info.tensors[name] for name in ("mean_weight", "var_weight") if name in info.tensors}
    targets = {name: getattr(norm, name) for name in weights}
    if any(not same_cuts or targets[name] is None or weights[name].shape != targets[name].shape for name in weights):
        result.not_transferred.append("λ")
    elif weights:
        for name, weight in weights.items():
            targets[name].copy_(weight)
        result.transferred.append("λ")


def _transfer_class_specific(info: NormInfo, norm: Norm, result: Transfer) -> None:
    """Copy class-specific tensors, such as a gate or a schedule, to a norm of the same class."""
    if info.norm_spec.custom is None:
        return
    names = [name for name in info.tensors if name not in (*PARAMETER_NAMES, "num_batches_tracked")]
    if info.norm_spec.custom != norm.norm_spec.custom:
        result.not_transferred += [", ".join(names)] if names else []
        return
    usable = [name for name in names if getattr(norm, name) is not None]  # a new bkn is not connected to other layers
    for name in usable:
        getattr(norm, name).copy_(info.tensors[name])
    result.transferred += usable
    result.not_transferred += [name for name in names if name not in usable]
