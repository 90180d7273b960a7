"""What a module of somebody else's does, in the words of the algebra: which norm it is, and what it owns.

    nn.BatchNorm1d/2d/3d, SyncBatchNorm, frozen ones       bn
    nn.InstanceNorm1d/2d/3d                                in
    nn.GroupNorm                                           gn:g
    nn.LayerNorm over (c, …), all axes of a sample         ln
    LayerNorm2d of torchvision and timm                    pn
    ours                                                   themselves

Classes of other packages are known by the names of their bases, so that nothing need be imported. A class that is not known is
added by `register`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from anynorm.core.cuts import ALL, Cut
from anynorm.core.grammar import parse
from anynorm.core.spec import NormSpec
from anynorm.core.update_rules import Frozen, UpdateRule
from anynorm.layers.distributed import AllReduce, NoSync, SyncGroup
from anynorm.layers.norm import Norm
from anynorm.layers.running_stats import STAT_PREFIXES


@dataclass(frozen=True)
class NormInfo:
    """A norm as it was found.

    Args:
        momentum: torch's; None where all batches weigh alike.
        population: another policy than `momentum` says.
        tensors: parameters under the names of our layers, and the tally of batches.
        kept: the mean and variance kept for each cut.
        then: modules that run on the norm's output, as part of it, by name.
    """

    norm_spec: NormSpec
    channels: int
    eps: float
    momentum: float | None = 0.1
    update_rule: UpdateRule | None = None
    tracks: bool = False
    sync_group: SyncGroup = field(default_factory=NoSync)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    running_stats: dict[Cut, tuple[Tensor | None, Tensor | None]] = field(default_factory=dict)
    post_modules: dict[str, nn.Module] = field(default_factory=dict)

    @property
    def spec(self) -> str:
        """The spec of what was found."""
        return str(self.norm_spec)


Reader = Callable[[Any], NormInfo | str]
_READERS: dict[str, Reader] = {}
ALGEBRA = ("weight", "bias", "class_weight", "class_bias", "mean_weight", "var_weight")
_FUSED = ("drop", "act", "activation")


def register(name: str, reader: Reader) -> None:
    """Teach the reading of a class by its name, with or without its module; subclasses are read likewise.

    Args:
        reader: gives the `Reading`, or the reason there is none.
    """
    _READERS[name] = reader


def read(module: nn.Module) -> NormInfo | str | None:
    """Read a module: what norm it is, or why it cannot be read; None where it is no norm."""
    if isinstance(module, Norm):
        return _read_ours(module)
    for kind in type(module).__mro__:
        reader = _READERS.get(f"{kind.__module__}.{kind.__qualname__}") or _READERS.get(kind.__name__)
        if reader is not None:
            found = reader(module)
            return found if isinstance(found, str) else _check_forward(module, kind, found)
    if re.search(r"Norm(\dd)?$", type(module).__name__) and not list(module.children()):
        return f"{type(module).__name__} is not known; see anynorm.surgery.adapters.register"
    return None


def _check_forward(module: nn.Module, kind: type, found: NormInfo) -> NormInfo | str:
    """See to it that a subclass adds nothing but an activation that can be kept."""
    own = _unparametrized(type(module)).forward
    fused = {name: child for name, child in module.named_children() if name in _FUSED}
    if own is kind.forward or (fused and _runs_then(module, kind, found, fused)):  # type: ignore[attr-defined]
        return replace(found, post_modules=fused)
    return f"{type(module).__name__} has a forward of its own, and what it does beside normalising would be lost"


@torch.no_grad()
def _runs_then(module: Any, kind: Any, found: NormInfo, fused: dict[str, nn.Module]) -> bool:
    """See on a few numbers whether a module is a norm and then its fused children, and nothing else."""
    if any(tensor.is_meta for tensor in found.tensors.values()):
        return True
    like = next((t for t in found.tensors.values() if t.is_floating_point()), torch.empty(()))
    space = {"1": (5,), "3": (2, 3, 2)}.get("".join(re.findall(r"(\d)d$", kind.__name__ + type(module).__name__))[-1:], (3, 4))
    x = torch.linspace(-2, 3, 2 * found.channels * math.prod(space), device=like.device, dtype=like.dtype)
    modes = {child: child.training for child in module.modules()}
    try:
        module.eval()
        x = x.reshape(2, found.channels, *space)
        expected = kind.forward(module, x.clone())
        for child in fused.values():
            expected = child(expected)
        return bool(torch.allclose(type(module).forward(module, x.clone()), expected, rtol=1e-3, atol=1e-4))
    except Exception:  # whatever somebody's forward raises, it is not read
        return False
    finally:
        for child, mode in modes.items():
            child.training = mode


def _unparametrized(kind: Any) -> Any:
    """Give the class below the one that torch's parametrizations put on top."""
    return kind.__bases__[0] if kind.__name__.startswith("Parametrized") else kind


def _tensors(module: nn.Module, *names: str) -> dict[str, Tensor]:
    found = {name: getattr(module, name, None) for name in names}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def own_tensors(norm: Norm) -> list[str]:
    """Name the parameters and buffers of a norm that only its class knows of: a gate, a schedule."""
    buffers = [name for name in norm._buffers if not name.startswith(STAT_PREFIXES)]
    return [name for name in norm._parameters if name not in ALGEBRA] + buffers


def _read_ours(norm: Norm) -> NormInfo:
    names = [*ALGEBRA, "num_batches_tracked", *own_tensors(norm)]
    return NormInfo(
        norm.norm_spec,
        norm.num_features,
        norm.eps,
        update_rule=norm.update_rule,
        tracks=norm.track_running_stats,
        sync_group=norm.sync_group,
        tensors=_tensors(norm, *names),
        running_stats={norm.cuts[index]: norm.running_stats(index) for index in norm._kept} if norm.has_running_stats else {},
        post_modules={name: child for name, child in norm.named_children() if name in _FUSED},
    )


def _kept(module: Any) -> dict[Cut, tuple[Tensor | None, Tensor | None]]:
    mean, var = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    return {} if mean is None or var is None else {Cut(1, ALL, 1): (mean, var)}


def _plain(spec: str, affine: bool) -> NormSpec:
    parts = parse(spec)
    return parts if affine else parts.without_affine()


def _read_batch_norm(module: _BatchNorm) -> NormInfo | str:
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        return "its channel count is not known before the first pass: give the model one"
    group = getattr(module, "process_group", None)
    return NormInfo(
        _plain("bn", module.affine),
        module.num_features,
        module.eps,
        momentum=module.momentum,
        tracks=module.track_running_stats,
        sync_group=AllReduce(group) if isinstance(module, nn.SyncBatchNorm) else NoSync(),
        tensors=_tensors(module, "weight", "bias", "num_batches_tracked"),
        running_stats=_kept(module),
    )


def _read_frozen(module: Any) -> NormInfo | str:
    tensors, kept = _tensors(module, "weight", "bias"), _kept(module)
    if not kept:
        return f"{type(module).__name__} keeps no running_mean and running_var"
    eps, channels = float(getattr(module, "eps", 0.0)), len(module.running_mean)
    parts = _plain("bn", "weight" in tensors)
    return NormInfo(parts, channels, eps, update_rule=Frozen(), tracks=True, tensors=tensors, running_stats=kept)


def _read_instance_norm(module: _InstanceNorm) -> NormInfo | str:
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        return "its channel count is not known before the first pass: give the model one"
    if module.track_running_stats:
        return "an InstanceNorm that keeps running statistics normalises by them in eval mode, which no norm of the algebra does"
    return NormInfo(_plain("in", module.affine), module.num_features, module.eps, tensors=_tensors(module, "weight", "bias"))


def _read_group_norm(module: nn.GroupNorm) -> NormInfo:
    parts = _plain(f"gn:{module.num_groups}", module.affine)
    return NormInfo(parts, module.num_channels, module.eps, tensors=_tensors(module, "weight", "bias"))


def _read_layer_norm(module: nn.LayerNorm) -> NormInfo | str:
    shape = tuple(module.normalized_shape)
    if len(shape) < 2:
        return f"LayerNorm over the last axis alone ({shape[0]}) is not channel-first: there is no axis 1 of channels it looks at"
    tensors = _tensors(module, "weight", "bias")
    by_channel = {name: tensor.reshape(shape[0], -1) for name, tensor in tensors.items()}
    if any(not rows.is_meta and bool((rows != rows[:, :1]).any()) for rows in by_channel.values()):
        return "its affine differs from position to position, and ours has one γ and β a channel"
    flat = {name: rows[:, 0] for name, rows in by_channel.items()}
    return NormInfo(_plain("ln", bool(tensors)), shape[0], module.eps, tensors=flat)


def _read_positional(module: Any) -> NormInfo | str:
    tensors = _tensors(module, "weight", "bias")
    shape = getattr(module, "normalized_shape", None) or tensors.get("weight", torch.empty(0)).shape
    if len(shape) != 1 or not shape[0]:
        return f"the channel count of this {type(module).__name__} cannot be told"
    return NormInfo(_plain("pn", bool(tensors)), int(shape[0]), float(getattr(module, "eps", 1e-5)), tensors=tensors)


register("torch.nn.modules.batchnorm._BatchNorm", _read_batch_norm)
register("torch.nn.modules.batchnorm.SyncBatchNorm", _read_batch_norm)
register("torch.nn.modules.instancenorm._InstanceNorm", _read_instance_norm)
register("torch.nn.modules.normalization.GroupNorm", _read_group_norm)
register("torch.nn.modules.normalization.LayerNorm", _read_layer_norm)
for _name in ("timm.layers.norm.GroupNorm", "timm.layers.norm.GroupNorm1"):
    register(_name, _read_group_norm)
for _name in ("FrozenBatchNorm", "FrozenBatchNorm2d", "FrozenBatchNormAct2d"):
    register(_name, _read_frozen)
for _name in ("LayerNorm2d", "LayerNormAct2d"):
    register(_name, _read_positional)
