"""Readers of norm layers of torch and other libraries: each returns the spec, tensors and settings of a layer as a `NormInfo`.

    nn.BatchNorm1d/2d/3d, SyncBatchNorm, FrozenBatchNorm   bn
    nn.InstanceNorm1d/2d/3d                                in
    nn.GroupNorm                                           gn:g
    nn.LayerNorm over (c, …), all axes except the batch    ln
    nn.LayerNorm over c, the last axis                     pn, channel_axis=-1
    nn.RMSNorm over c, those of timm and transformers      rms, channel_axis=-1
    LayerNorm2d of torchvision and timm                    pn
    anynorm layers                                         their own spec

With torch's `bias=False`, .nobias is added.

Classes of other packages are recognized by the names of their base classes, so those packages are never imported, and norms over
the channels of each position also by their output (`identify`). `register` adds support for another class.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from anynorm.core.cuts import ALL, Cut
from anynorm.core.update_rules import Frozen
from anynorm.kernels.sync import AllReduce, NoSync
from anynorm.layers.morphing import MorphingNorm
from anynorm.layers.norm import Norm
from anynorm.layers.running_stats import STAT_PREFIXES
from anynorm.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm
from anynorm.surgery.identify import define, describe, identify, tensors_of_norm
from anynorm.surgery.modes import preserve_modes
from anynorm.surgery.norm_info import NormInfo, UnsupportedNormError

__all__ = ["NormInfo", "UnsupportedNormError", "read_norm", "register"]
Reader = Callable[[Any], NormInfo]
_READERS: dict[str, Reader] = {}
PARAMETER_NAMES = ("weight", "bias", "class_weight", "class_bias", "mean_weight", "var_weight")
_POST_MODULE_NAMES = ("drop", "act", "activation")


def register(name: str, reader: Reader) -> None:
    """Register a reader for a norm class and its subclasses.

    Args:
        name: name of the class, with or without its module.
        reader: a function that takes the module and returns its `NormInfo`, or raises `UnsupportedNormError` with the reason.

    >>> class ScaledBatchNorm(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.inner = nn.BatchNorm2d(8)
    ...     def forward(self, x):
    ...         return self.inner(x)
    >>> register("ScaledBatchNorm", lambda module: read_norm(module.inner))
    >>> read_norm(ScaledBatchNorm()).spec
    'bn'
    """
    _READERS[name] = reader


@overload
def read_norm(module: Norm | _BatchNorm | nn.GroupNorm) -> NormInfo: ...


@overload
def read_norm(module: nn.Module) -> NormInfo | None: ...


def read_norm(module: nn.Module) -> NormInfo | None:
    """Return the `NormInfo` of a norm layer; None for any other module.

    Raises:
        UnsupportedNormError: if the module is a norm that cannot be described by a spec.

    >>> read_norm(nn.GroupNorm(4, 8)).spec
    'gn:4'
    """
    if isinstance(module, Norm):
        return _read_anynorm(module)
    for base in type(module).__mro__:
        reader = _READERS.get(f"{base.__module__}.{base.__qualname__}") or _READERS.get(base.__name__)
        if reader is not None:
            return _with_post_modules(module, base, reader(module))
    if re.search(r"Norm(\dd)?(Fp32)?$", type(module).__name__) and not list(module.children()):
        if (info := identify(module)) is not None:
            return info
        raise UnsupportedNormError(f"the class {type(module).__name__} is unknown; anynorm.register adds support for it")
    return None


def _with_post_modules(module: nn.Module, base: type, info: NormInfo) -> NormInfo:
    """Add the dropout and activation of a subclass to the info; raise UnsupportedNormError if its forward does anything else."""
    forward = _without_parametrization(type(module)).forward
    post_modules = {name: child for name, child in module.named_children() if name in _POST_MODULE_NAMES}
    if forward is base.forward or (post_modules and _is_norm_then(module, base, info, post_modules)):  # type: ignore[attr-defined]
        return replace(info, post_modules=post_modules)
    if (identified := identify(module)) is not None:
        return identified
    raise UnsupportedNormError(f"{type(module).__name__} has its own forward, which may do more than normalize")


@torch.no_grad()
def _is_norm_then(module: Any, base: Any, info: NormInfo, post_modules: dict[str, nn.Module]) -> bool:
    """Whether a module computes its base norm followed by its post modules, and nothing else.

    Names and source code do not show this: timm's BatchNormAct2d does not call the forward of its base class. So the outputs are
    compared on a small input.
    """
    if any(tensor.is_meta for tensor in info.tensors.values()):
        return True
    like = next((tensor for tensor in info.tensors.values() if tensor.is_floating_point()), torch.empty(()))
    dims = next((match[1] for cls in type(module).__mro__ if (match := re.search(r"([123])d$", cls.__name__))), "2")
    space = {"1": (5,), "2": (3, 4), "3": (2, 3, 2)}[dims]
    x = torch.linspace(-2, 3, 2 * info.channels * math.prod(space), device=like.device, dtype=like.dtype)
    x = x.reshape(2, info.channels, *space).movedim(1, info.channel_axis)
    with preserve_modes(module.modules()):
        module.eval()
        try:
            expected = base.forward(module, x.clone())
            for child in post_modules.values():
                expected = child(expected)
            return bool(torch.allclose(type(module).forward(module, x.clone()), expected, rtol=1e-3, atol=1e-4))
        except Exception:  # a forward that raises anything on this input is not supported
            return False


def _without_parametrization(cls: Any) -> Any:
    """Return the original class of a module whose class was replaced by torch's parametrizations."""
    return cls.__bases__[0] if cls.__name__.startswith("Parametrized") else cls


def _tensors(module: nn.Module, *names: str) -> dict[str, Tensor]:
    tensors = {name: getattr(module, name, None) for name in names}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def class_specific_tensors(norm: Norm) -> list[str]:
    """Return the names of the parameters and buffers that are specific to the class of a norm, such as a gate or a schedule."""
    buffers = [name for name in norm._buffers if not name.startswith(STAT_PREFIXES)]
    return [name for name in norm._parameters if name not in PARAMETER_NAMES] + buffers


def _read_anynorm(norm: Norm) -> NormInfo:
    norm_spec, tensors = norm.norm_spec, _tensors(norm, *PARAMETER_NAMES, "num_batches_tracked", *class_specific_tensors(norm))
    if isinstance(norm, MorphingNorm):  # described as it is now, by a norm with fixed mixing weights
        t = "" if norm.t.is_meta else f" (t = {float(norm.t):.2f})"
        norm_spec = replace(norm_spec, name=f"morphing {norm.spec}{t}")
        tensors = {**_tensors(norm, "num_batches_tracked"), **norm.tensors()}
    return NormInfo(
        norm_spec,
        norm.num_features,
        norm._eps,
        update_rule=norm.update_rule,
        track_running_stats=norm.track_running_stats,
        sync_group=norm.sync_group,
        tensors=tensors,
        running_stats={norm.cuts[index]: norm.running_stats(index) for index in norm.tracked_cuts},
        activation=norm.activation,
        single_value=norm.single_value,
        channel_axis=norm.channel_axis,
        post_modules={name: getattr(norm, name) for name in norm.post_modules},
        input_dims=norm.input_dims,
        unbatched_dims=norm.unbatched_dims,
    )


_BATCH_NORM_DIMS = {nn.BatchNorm1d: (2, 3), nn.BatchNorm2d: (4,), nn.BatchNorm3d: (5,)}
_INSTANCE_NORM_DIMS = {nn.InstanceNorm1d: 3, nn.InstanceNorm2d: 4, nn.InstanceNorm3d: 5}


def _input_dims(module: Any, dims: dict[Any, Any]) -> Any:
    """Return the entry of the class of torch whose check of dimensions a module has; None if it has one of its own."""
    check = getattr(type(module), "_check_input_dim", None)
    return next((value for norm_class, value in dims.items() if norm_class._check_input_dim is check), None)


def _torch_running_stats(module: Any) -> dict[Cut, tuple[Tensor | None, Tensor | None]]:
    mean, var = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    return {} if mean is None or var is None else {Cut(1, ALL, 1): (mean, var)}


def _check_initialized(module: nn.Module) -> None:
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        raise UnsupportedNormError("its number of channels is unknown before the first forward pass; run the model once")


def _read_lazy_norm(module: Any) -> NormInfo:
    _check_initialized(module)
    raise UnsupportedNormError("it becomes a norm at its first forward pass; run the model once")


def _read_batch_norm(module: _BatchNorm) -> NormInfo:
    _check_initialized(module)
    group, tensors = getattr(module, "process_group", None), _tensors(module, "weight", "bias", "num_batches_tracked")
    return NormInfo(
        define(BatchNorm, tensors),
        module.num_features,
        module.eps,
        momentum=module.momentum,
        track_running_stats=module.track_running_stats,
        sync_group=AllReduce(group) if isinstance(module, nn.SyncBatchNorm) else NoSync(),
        tensors=tensors,
        running_stats=_torch_running_stats(module),
        input_dims=_input_dims(module, _BATCH_NORM_DIMS) or (),
    )


def _read_frozen_batch_norm(module: Any) -> NormInfo:
    tensors, running_stats = _tensors(module, "weight", "bias"), _torch_running_stats(module)
    if not running_stats:
        raise UnsupportedNormError(f"{type(module).__name__} has no running_mean and running_var")
    return NormInfo(
        define(BatchNorm, tensors),
        len(module.running_mean),
        float(module.eps) if hasattr(module, "eps") else _eps_of_forward(module),
        update_rule=Frozen(),
        track_running_stats=True,
        tensors=tensors,
        running_stats=running_stats,
    )


@torch.no_grad()
def _eps_of_forward(module: nn.Module) -> float:
    """Return the eps of a frozen norm without the attribute `eps`, computed from an output; 0 if its forward adds none.

    For weight 1, bias 0, mean 0 and a small variance v, the output for x = 1 is 1 / √(v + eps).
    """
    variance = 1e-9
    probe: Any = copy.deepcopy(module).to_empty(device="cpu").double()
    for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", variance)):
        if getattr(probe, name, None) is not None:
            getattr(probe, name).fill_(value)
    try:
        y = type(probe).forward(probe, torch.ones(1, len(probe.running_mean), 1, 1, dtype=torch.float64)).flatten()[0]
    except Exception as error:  # a forward of another package may raise anything
        raise UnsupportedNormError(
            f"{type(module).__name__} has no attribute eps, and its forward raised {type(error).__name__}"
        ) from error
    return round(float(y) ** -2 - variance, 12)


def _read_instance_norm(module: _InstanceNorm) -> NormInfo:
    _check_initialized(module)
    if module.track_running_stats:
        raise UnsupportedNormError(
            "an InstanceNorm with running statistics normalizes by them in eval mode, which no norm of the algebra does"
        )
    tensors, dims = _tensors(module, "weight", "bias"), _input_dims(module, _INSTANCE_NORM_DIMS)
    norm_spec = define(InstanceNorm, tensors)
    if dims is None:
        return NormInfo(norm_spec, module.num_features, module.eps, tensors=tensors)
    return NormInfo(norm_spec, module.num_features, module.eps, tensors=tensors, input_dims=(dims,), unbatched_dims=dims - 1)


def _read_group_norm(module: nn.GroupNorm) -> NormInfo:
    tensors = _tensors(module, "weight", "bias")
    return NormInfo(define(GroupNorm, tensors, num_groups=module.num_groups), module.num_channels, module.eps, tensors=tensors)


def _read_layer_norm(module: nn.LayerNorm) -> NormInfo:
    shape = tuple(module.normalized_shape)
    if len(shape) == 1:
        return describe("pn", shape[0], module.eps, tensors_of_norm(module), channel_axis=-1)
    tensors = _tensors(module, "weight", "bias")
    by_channel = {name: tensor.reshape(shape[0], -1) for name, tensor in tensors.items()}
    if any(not table.is_meta and bool((table != table[:, :1]).any()) for table in by_channel.values()):
        raise UnsupportedNormError("its affine differs between positions; anynorm has one γ and β per channel")
    affine = {name: table[:, 0] for name, table in by_channel.items()}
    return NormInfo(define(LayerNorm, tensors), shape[0], module.eps, tensors=affine)


def _read_layer_norm_2d(module: Any) -> NormInfo:
    tensors = _tensors(module, "weight", "bias")
    shape = getattr(module, "normalized_shape", None) or tensors.get("weight", torch.empty(0)).shape
    if len(shape) != 1 or not shape[0]:
        raise UnsupportedNormError(f"the number of channels of this {type(module).__name__} is unknown")
    return describe("pn", int(shape[0]), float(getattr(module, "eps", 1e-5)), tensors, channel_axis=1)


register("anynorm.layers.lazy.LazyNorm", _read_lazy_norm)
register("torch.nn.modules.batchnorm._BatchNorm", _read_batch_norm)
register("torch.nn.modules.batchnorm.SyncBatchNorm", _read_batch_norm)
register("torch.nn.modules.instancenorm._InstanceNorm", _read_instance_norm)
register("torch.nn.modules.normalization.GroupNorm", _read_group_norm)
register("torch.nn.modules.normalization.LayerNorm", _read_layer_norm)
for _name in ("timm.layers.norm.GroupNorm", "timm.layers.norm.GroupNorm1"):
    register(_name, _read_group_norm)
for _name in ("FrozenBatchNorm", "FrozenBatchNorm2d", "FrozenBatchNormAct2d"):
    register(_name, _read_frozen_batch_norm)
for _name in ("LayerNorm2d", "LayerNormAct2d"):
    register(_name, _read_layer_norm_2d)
