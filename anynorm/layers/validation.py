"""What may come in: the checks at a layer's door, before anything is computed or kept.

No sentence is put together unless it is needed, so that the checks cost next to nothing and trace.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anynorm import kernels
from anynorm.core.cuts import Cut
from anynorm.errors import ConditionError, ShapeError
from anynorm.kernels.interface import BatchStats, ForwardSpec
from anynorm.layers.conditioning import read_labels, read_style
from anynorm.layers.running_stats import is_recomputing
from anynorm.layers.state import State

Shape = tuple[int, int, int]


def check_input(norm: State, task: ForwardSpec, x: Tensor) -> None:
    """Refuse an x that the norm has no meaning for."""
    if not isinstance(x, Tensor):
        raise ShapeError(f"A norm takes a tensor (n, c, …), not a {type(x).__name__}. Layer {norm.spec!r}.")
    key = None if torch.compiler.is_compiling() else (x.shape, x.dtype)
    if key is not None and key in task.admitted:
        return
    reason = _misfit(norm, x)
    if reason:
        raise ShapeError(f"{reason} Layer {norm.spec!r} of {norm.num_features} channels, input {x.dtype} {tuple(x.shape)}.")
    if key is not None:
        task.admitted.add(key)  # the same kind of input need not be looked at again


def _misfit(norm: State, x: Tensor) -> str:
    if not x.is_floating_point():
        return f"A norm takes floating-point values, not {x.dtype}. Call .float() on the input first."
    if x.dim() < 2:
        return f"A norm takes (n, c), (n, c, length), (n, c, h, w) or (n, c, t, h, w); {x.dim()} axes came."
    n, c = x.shape[:2]
    if c != norm.num_features:
        moved = x.shape[-1] == norm.num_features
        hint = "The last axis fits: move it to axis 1." if moved else f"Make the norm with {c} channels."
        return f"Axis 1 holds {c} channels, not {norm.num_features}. {hint}"
    s = math.prod(x.shape[2:])
    looking = [cut for cut in norm.cuts if norm.uses_batch or not cut.pools_samples]
    if s == 0 and looking:
        return f"{looking[0]} takes statistics over positions, and there are none. Give an input without axes of length 0."
    misfits = [cut.shape_error((n, c, s)) for cut in norm.cuts if cut in looking or not cut.is_ghost]
    single = _single(norm, (n, c, s)) if norm.training else None
    return next(filter(None, misfits), _one_value(single) if single else "")


def _single(norm: State, shape: Shape) -> Cut | None:
    """Find a cut whose statistics of one value would do harm.

    A population of them would, and a whole side of live ones; one live cut beside others does not (SN on 1×1 maps).
    """
    looked_at = [norm.uses_batch or not cut.pools_samples for cut in norm.cuts]
    single = [looks and _values(norm, cut, shape) == 1 for looks, cut in zip(looked_at, norm.cuts, strict=True)]
    harmful = [cut for cut, one in zip(norm.cuts, single, strict=True) if one and (cut.pools_samples or norm.one_cut_per_channel)]
    for side in (norm.mean_cuts, norm.var_cuts):
        if all([single[k] for k in side]):
            harmful.append(norm.cuts[side[0]])
    return harmful[0] if harmful else None


def _values(norm: State, cut: Cut, shape: Shape) -> int:
    """Count the values behind one statistic; 0 where domains or processes share them out, see `check_shared`."""
    if norm.splits_batch and cut.pools_samples and not cut.is_ghost:
        return 0
    return math.prod([whole // part if part else 0 for whole, part in zip(shape, cut.parts(shape), strict=True)])


def check_shared(norm: State, batch: BatchStats) -> None:
    """Refuse statistics of one value where domains or processes share the samples out, so that only the counts tell.

    Compiled code and devices that would have to stop for the answer are not asked: a variance of 0 is kept there.
    """
    if not (norm.training and norm.splits_batch):
        return
    for index, cut in enumerate(norm.cuts):
        if cut.pools_samples and batch.is_single(index):
            raise ShapeError(f"{_one_value(cut)} Layer {norm.spec!r} of {norm.num_features} channels.")


def _one_value(cut: Cut) -> str:
    return (
        f"{cut} would take a statistic from one value in training, where the mean is the value and the variance 0. "
        "Give more samples or positions, call .eval(), or take a norm that pools over channels (ln, gn, en)."
    )


def read_condition(norm: State, x: Tensor, condition: Any) -> Any:
    """Turn the condition into labels (n,) or a style (mean, std); None where the norm takes none."""
    if not norm.takes_condition:
        return None
    try:
        if condition is None:
            raise ConditionError(_unconditioned(norm))
        if norm.norm_spec.takes_style:
            return read_style(condition, x, moments=kernels.moments, eps=norm.eps)
        return read_labels(condition, x, norm.norm_spec.num_classes)
    except ConditionError as error:
        raise ConditionError(f"{error} Layer {norm.spec!r}, input {tuple(x.shape)}.") from None


def _unconditioned(norm: State) -> str:
    what = (
        "a style" if norm.norm_spec.takes_style else f"the class or domain (0 to {norm.norm_spec.num_classes - 1}) of each sample"
    )
    how = "call norm(x, condition), or the model inside `with anynorm.condition(model, condition):`"
    when = " Checkpointing computes it again after its block has ended: call backward inside." if is_recomputing() else ""
    return f"{norm.spec} needs {what}: {how}.{when}"
