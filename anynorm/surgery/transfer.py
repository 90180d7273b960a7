"""What becomes of a norm's tensors when another takes its place.

γ, β            kept; rescaled where old and new statistics are all kept, so that inference gives the same output; given to
                each class where the new norm has an affine a class; lost to a style
class γ, β      kept where the new norm has as many classes; a sandwich is merged where there is no shared affine to hold it
statistics      kept for the same cut; pooled exactly where the new cut unites the old one's parts (bn → en, bgn, hn);
                given to each domain and strip; lost where the new cut is finer (en → bn) or domains would be mixed
λ               kept for the same cuts
what else is    kept where the norm is the same (a gate, a schedule)
ε, rate, mode   kept
"""

from __future__ import annotations

import torch
from torch import Tensor

from anynorm.core.affine import chain, standardize
from anynorm.core.cuts import ALL, Cut
from anynorm.core.moments import Moments, pool
from anynorm.layers.norm import Norm
from anynorm.surgery.adapters import ALGEBRA, NormInfo

_OWN = ("class_weight", "class_bias")
_SHARED = ("weight", "bias")


@torch.no_grad()
def carry(reading: NormInfo, norm: Norm, *, parametrized: bool = False) -> tuple[list[str], list[str]]:
    """Fill a new norm with what the old one had, and say what was carried and what was lost.

    Args:
        parametrized: γ or β will be computed from other tensors, and cannot be rescaled.
    """
    carried: list[str] = []
    lost: list[str] = []
    steps = (_carry_affine, _carry_statistics, _carry_weights, _carry_own)
    for done, words in [step(reading, norm) for step in steps]:
        (carried if done else lost).extend(words)
    tally = reading.tensors.get("num_batches_tracked")
    if tally is not None and norm.num_batches_tracked is not None and "statistics" in carried:
        norm.num_batches_tracked.copy_(tally if tally.shape == norm.num_batches_tracked.shape else tally.max())
    if "statistics" in carried and not parametrized and _rescale(reading, norm):
        carried[0] = f"{carried[0]} rescaled"
    return carried, lost


def _rescale(reading: NormInfo, norm: Norm) -> bool:
    """Set γ and β so that y = A x + B stays what it was, where the old norm is bn and the new one has fixed A and B too."""
    fixed = all(cut.pools_samples and cut.space == 1 for cut in norm.used_cuts())
    bn = Cut(1, ALL, 1)
    was_bn, is_bn = (parts.mean == parts.var == (bn,) for parts in (reading.norm_spec, norm.norm_spec))
    if not was_bn or is_bn or not fixed or norm.weight is None or norm.bias is None or norm.class_weight is not None:
        return False
    mean, var = (table.double() for table in reading.running_stats[bn] if table is not None)
    gamma, beta = norm.weight.double(), norm.bias.double()
    wanted, now = gamma * standardize(var, reading.eps)[0], norm.fixed_affine()
    ratio = torch.where(now[0] != 0, wanted / now[0], 1.0)
    norm.weight.copy_(gamma * ratio)
    norm.bias.copy_(beta - wanted * mean + (beta - now[1]) * ratio)
    return True


def _carry_affine(reading: NormInfo, norm: Norm) -> tuple[bool, list[str]]:
    old = reading.tensors
    shared = [old[name] for name in _SHARED] if "weight" in old and "bias" in old else None
    if "weight" in old and shared is None:  # torch's bias=False
        shared = [old["weight"], torch.zeros_like(old["weight"])]
    own = [old[name] for name in _OWN] if "class_weight" in old else None
    if shared is None and own is None:
        _reset_classes(norm)
        return True, ["new γ, β"] if norm.affine else []
    if norm.weight is None and norm.class_weight is None:
        return False, ["γ, β"]
    same_classes = own is not None and norm.class_weight is not None and own[0].shape == norm.class_weight.shape
    if own is not None and not same_classes:
        _fill(norm, _SHARED, shared)
        _reset_classes(norm)
        return False, ["γ, β of the classes"]
    if own is not None and shared is not None and norm.weight is None:
        own, shared = list(chain((shared[0], shared[1]), (own[0], own[1]))), None
    if own is not None:
        _fill(norm, _OWN, own)
    elif norm.weight is None and shared is not None:
        _fill(norm, _OWN, shared)
        shared = None
    else:
        _reset_classes(norm)
    _fill(norm, _SHARED, shared)
    return True, ["γ, β"]


def _fill(norm: Norm, names: tuple[str, str], values: list[Tensor] | None) -> None:
    for name, value in zip(names, values or [], strict=False):
        tensor = getattr(norm, name)
        if tensor is not None:
            tensor.copy_(value.expand_as(tensor))
            tensor.requires_grad_(value.requires_grad)


def _reset_classes(norm: Norm) -> None:
    """Let an own affine that nothing was known of do nothing, so that the function stays."""
    if norm.class_weight is not None and norm.class_bias is not None:
        norm.class_weight.fill_(1)
        norm.class_bias.fill_(0)


def _carry_statistics(reading: NormInfo, norm: Norm) -> tuple[bool, list[str]]:
    if not norm.has_running_stats:
        return False, ["statistics"] if reading.running_stats else []
    found = [_statistics(reading, norm, index) for index in norm._kept]
    if None in found:
        return False, ["statistics: recalibrate"] if reading.running_stats else ["no statistics: recalibrate"]
    for index, tables in zip(norm._kept, found, strict=True):
        for buffer, table in zip(norm.running_stats(index), tables or (), strict=True):
            if buffer is not None:
                same = table.numel() == buffer.numel()
                buffer.copy_(table.reshape(buffer.shape) if same else table.reshape(-1).expand_as(buffer))
    return True, ["statistics"]


def _statistics(reading: NormInfo, norm: Norm, index: int) -> tuple[Tensor, Tensor] | None:
    """Find the mean and variance of a cut among what was kept, or unite them."""
    cut, domains = norm.cuts[index], norm.norm_spec.num_stat_sets
    old_domains = reading.norm_spec.num_stat_sets
    apart = reading.norm_spec.soft_assignment != norm.norm_spec.soft_assignment  # a mode is no domain
    if old_domains not in (0, domains) or (old_domains and apart):
        return None
    for old, (mean, var) in reading.running_stats.items():
        shape = (old_domains or 1, old.channels or norm.num_features, old.space)
        wanted = (cut.channels or norm.num_features, cut.space)
        if (old.channels, old.space) == (cut.channels, cut.space):
            zeros = next(table for table in (mean, var) if table is not None).new_zeros(())
            return zeros if mean is None else mean, zeros if var is None else var
        if mean is None or var is None or old.space != 1 or shape[1] % wanted[0]:
            continue
        if wanted[1] == 1:
            rows = Moments(
                mean.double().reshape(shape), var.double().reshape(shape), torch.ones_like(mean, dtype=torch.float64)[0]
            )
            united = pool(rows._replace(count=rows.count.reshape(1, 1, 1)), (shape[0], wanted[0], 1))
            return united.mean, united.var
        if old == Cut(1, ALL, 1) and not old_domains:  # strips of a channel are taken to be alike
            return mean.repeat_interleave(wanted[1]), var.repeat_interleave(wanted[1])
    return None


def _carry_weights(reading: NormInfo, norm: Norm) -> tuple[bool, list[str]]:
    same = (reading.norm_spec.mean, reading.norm_spec.var) == (norm.norm_spec.mean, norm.norm_spec.var)
    same = same and reading.norm_spec.custom == norm.norm_spec.custom
    found = False
    for name in ("mean_weight", "var_weight"):
        old, new = reading.tensors.get(name), getattr(norm, name)
        if old is None:
            continue
        if new is None or not same or old.shape != new.shape:
            return False, ["λ"]
        new.copy_(old)
        found = True
    return True, ["λ"] if found else []


def _carry_own(reading: NormInfo, norm: Norm) -> tuple[bool, list[str]]:
    """Carry what only one class of norms has, to a norm that is the same."""
    if reading.norm_spec.custom is None:
        return True, []
    had = [name for name in reading.tensors if name not in (*ALGEBRA, "num_batches_tracked")]
    if reading.norm_spec.custom != norm.norm_spec.custom:
        return False, [", ".join(had)] if had else []
    for name in had:
        getattr(norm, name).copy_(reading.tensors[name])
    return True, had
