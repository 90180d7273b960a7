"""What code that is written for torch's BatchNorm finds in norms of anynorm.

Some of it goes by attributes: y = γ (x − running_mean)/√(running_var + eps) + β, as in `fuse_conv_bn_eval` of torch and the
reparameterization of timm. That is right for `bn`. For every other norm with running statistics, `eps` is a number that
refuses to be added to a tensor (`GuardedEps`).

Other code goes through the modules of a model and looks for instances of torch's class. No norm of anynorm is one, since
`convert_sync_batchnorm` would make BN of hn or sn. So `named_modules` and `named_children` of a norm look who asks:

    torch.optim.swa_utils.update_bn                     works: it is given an instance of `_BatchNorm` that controls the norm
    fvcore.nn.precise_bn.get_bn_modules                 raises SurgeryError with the function to call instead
    convert_sync_batchnorm of torch and timm            the same
    freeze_batch_norm_2d, convert_splitbn_model of timm the same
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from anynorm.core.cuts import Cut
from anynorm.core.spec import PLAIN_AFFINE, SCALE_AFFINE
from anynorm.core.update_rules import Cumulative
from anynorm.errors import FoldError, SurgeryError

if TYPE_CHECKING:
    from anynorm.layers.norm import Norm
    from anynorm.layers.running_stats import RunningStats

_ITERATORS = frozenset(["named_modules", "modules", "named_children", "children", "<listcomp>", "<genexpr>"])
_INSTEAD = {
    ("fvcore", "get_bn_modules"): "anynorm.recalibrate(model, loader, batches=200)",
    ("torch", "convert_sync_batchnorm"): "anynorm.sync(model)",
    ("timm", "convert_sync_batchnorm"): "anynorm.sync(model)",
    ("timm", "freeze_batch_norm_2d"): "anynorm.freeze(model)",
    ("timm", "convert_splitbn_model"): "anynorm.convert(model, 'auxbn@N') with a domain per split",
}
"""What to call instead of a function, by its package and name."""
_FUNCTIONS = frozenset(["update_bn", *(name for _, name in _INSTEAD)])


class GuardedEps(float):
    """The ε of a norm that has running statistics, but does not infer as BatchNorm.

    It is a number, but no term of an operation of torch, so code that computes BN from the attributes of the norm raises.
    """

    spec: str

    def __new__(cls, value: float, spec: str = "") -> GuardedEps:
        """Make the ε of a norm."""
        eps = super().__new__(cls, value)
        eps.spec = spec
        return eps

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a plain number."""
        return float, (float(self),)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Raise a FoldError: an operation of torch got this number."""
        eps = next((value for value in [*args, *(kwargs or {}).values()] if isinstance(value, cls)), None)
        spec = "This norm" if eps is None else eps.spec
        raise FoldError(
            f"{spec} does not infer as BatchNorm by its running_mean and running_var, weight and bias, so code for BatchNorm, "
            "such as fuse_conv_bn_eval, cannot fold it. Use anynorm.fold(model, example). For computations of your own, use "
            "float(norm.eps)."
        )


def infers_as_batch_norm(norm: Norm) -> bool:
    """Whether inference is y = γ (x − running_mean)/√(running_var + ε) + β with γ = weight and β = bias, and nothing else."""
    norm_spec = norm.norm_spec
    mean, var = (
        [_num_values(norm.cuts[index], norm.num_features) for index in side]
        for side in (norm.mean_cut_indices, norm.var_cut_indices)
    )
    has_cuts = mean == [norm.num_features] and var in ([norm.num_features], [1])
    has_affine = norm_spec.affine in (PLAIN_AFFINE, SCALE_AFFINE) or not norm_spec.affine.stages
    has_more = norm_spec.num_stat_sets or norm.activation is not None or norm.post_modules
    return has_cuts and has_affine and not has_more and (norm_spec.custom is None or norm.is_batch_norm_in_inference)


def _num_values(cut: Cut, num_features: int) -> int:
    """Return the number of values of a running statistic that broadcasts over channels; 0 if it differs between positions."""
    return cut.channels or num_features if cut.pools_samples and cut.space == 1 and not cut.crosses_channels else 0


class _StatisticsOf(_BatchNorm):
    """What `update_bn` changes of a norm: it resets the statistics, sets momentum=None and restores it, here the update rule."""

    def __init__(self, norm: RunningStats) -> None:
        nn.Module.__init__(self)
        self.__dict__["norm"] = norm

    def reset_running_stats(self) -> None:
        """Reset the statistics of the norm."""
        self.__dict__["norm"].reset_running_stats()

    @property
    def momentum(self) -> Any:
        """The update rule of the norm; None sets that of momentum=None, unless the rule of the norm is exact."""
        return self.__dict__["norm"].update_rule

    @momentum.setter
    def momentum(self, value: Any) -> None:
        norm = self.__dict__["norm"]
        if value is not None:
            norm.update_rule = value
        elif not norm.update_rule.is_exact:
            norm.update_rule = Cumulative()


def caller_for_batch_norm() -> tuple[str, str] | None:
    """Return the package and name of the function that goes through modules, if it looks for BatchNorm; otherwise None."""
    if torch.compiler.is_compiling():
        return None
    frame = sys._getframe(2)
    while frame.f_code.co_name in _ITERATORS and frame.f_back is not None:
        frame = frame.f_back
    name = frame.f_code.co_name
    return (str(frame.f_globals.get("__name__", "")).partition(".")[0], name) if name in _FUNCTIONS else None


def list_modules(
    norm: RunningStats, modules: Iterator[tuple[str, nn.Module]], caller: tuple[str, str]
) -> Iterator[tuple[str, nn.Module]]:
    """Return what `named_modules` of a norm returns to a function that looks for BatchNorm.

    Args:
        norm: the norm.
        modules: what it returns to all others.
        caller: package and name of the function.

    Raises:
        SurgeryError: if the function cannot work on this norm, and would do nothing without a message.
    """
    if not norm.has_running_stats:
        return modules
    if caller == ("torch", "update_bn"):
        listed = list(modules)
        return iter([*listed, *((name, _StatisticsOf(norm)) for name, module in listed if module is norm)])
    refuse(norm, caller)
    return modules


def refuse(norm: RunningStats, caller: tuple[str, str]) -> None:
    """Raise a SurgeryError if a function would do nothing to a norm, which pools over samples."""
    instead = _INSTEAD.get(caller)
    if instead is not None:
        package, name = caller
        raise SurgeryError(
            f"{name} of {package} looks for torch's BatchNorm classes, and would leave {norm.norm_spec} as it is. Use {instead}, "
            "which is for torch's norms too."
        )
