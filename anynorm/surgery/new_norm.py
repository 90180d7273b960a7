"""Construction of the norm that replaces another, with the same device, dtype, mode, hooks, parametrizations and activation."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils import parametrize

from anynorm.core.spec import PLAIN_AFFINE, SCALE_AFFINE, NormSpec
from anynorm.core.update_rules import from_torch
from anynorm.layers.baselines.schedule import ScheduledNorm
from anynorm.layers.norm import Norm
from anynorm.registry import make
from anynorm.surgery.find import NormSite
from anynorm.surgery.transfer import Transfer, transfer


class Replacement(NamedTuple):
    """A new norm, and the record of what was transferred to it from the old norm."""

    norm: Norm
    transfer: Transfer


def make_replacement(site: NormSite, norm_spec: NormSpec, options: dict[str, Any]) -> Replacement:
    """Make the norm that replaces the norm of a site.

    Args:
        site: site of a supported norm.
        norm_spec: definition of the new norm.
        options: options of `anynorm.make`, which override the settings of the old norm. A norm without affine is replaced by a
            norm without affine, and one without β by one without β, unless the spec has an affine of another kind, such as one
            per class.

    Raises:
        SpecError: if the spec does not fit the channels.
    """
    info = site.info
    tensors = [*info.tensors.values(), *(tensor for pair in info.running_stats.values() for tensor in pair if tensor is not None)]
    like = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
    settings: dict[str, Any] = {"eps": info.eps}
    if info.update_rule is not None or "momentum" not in options:
        settings["update_rule"] = info.update_rule or from_torch(info.momentum)
    settings |= {"activation": info.activation, "single_value": info.single_value, "channel_axis": info.channel_axis}
    settings |= {} if like is None else {"device": like.device, "dtype": like.dtype}
    settings["track_running_stats"] = info.track_running_stats or not info.pools_samples
    has_affine = any(stage.names for stage in info.norm_spec.affine.stages)
    settings["affine"] = has_affine or norm_spec.affine not in (PLAIN_AFFINE, SCALE_AFFINE)
    if info.spec.endswith(".nobias") and norm_spec.affine == PLAIN_AFFINE and not norm_spec.custom:
        settings["bias"] = False
    norm = make(norm_spec, info.channels, **(settings | options))
    set_post_modules(norm, info.post_modules)
    norm.sync_group = info.sync_group
    result = transfer(info, norm, parametrized=hasattr(site.module, "parametrizations"))
    if isinstance(norm, ScheduledNorm):
        norm.set_hyperparameters(
            **{name: options[name] for name in norm.hyperparameters if name in options}
        )  # override the transferred values
    norm.input_dims, norm.unbatched_dims = info.input_dims, info.unbatched_dims
    copy_hooks_and_parametrizations(site.module, norm)
    return Replacement(norm.train(site.module.training), result)


def make_equivalent(site: NormSite, **options: Any) -> Norm:
    """Make an anynorm layer with the same spec and the same values of all tensors as the norm of a site."""
    return make_replacement(site, site.info.norm_spec, options).norm


def set_post_modules(norm: Norm, post_modules: dict[str, nn.Module]) -> None:
    """Set the modules that a norm applies to its output."""
    norm.post_modules = tuple(post_modules)
    for name, child in post_modules.items():
        norm.add_module(name, child)


def share_parameters(old: nn.Module, new: nn.Module) -> None:
    """Reuse the parameter objects of `old` in `new`, a norm of the same spec, so that an optimizer needs no change."""
    for name, parameter in old._parameters.items():
        if parameter is not None and new._parameters.get(name) is not None:
            new._parameters[name] = parameter


def share_tensors(old: nn.Module, new: nn.Module) -> None:
    """Reuse parameters and buffers of `old` in `new`, a norm of the same spec, so that training changes both."""
    share_parameters(old, new)
    for name, buffer in old._buffers.items():
        if buffer is not None and new._buffers.get(name) is not None:
            new._buffers[name] = buffer


def copy_hooks(old: nn.Module, new: nn.Module) -> None:
    """Copy hooks from one module to another."""
    for name, hooks in vars(old).items():
        if name.endswith(("hooks", "hooks_with_kwargs", "hooks_always_called")) and isinstance(hooks, dict) and hooks:
            vars(new)[name] = hooks


def copy_hooks_and_parametrizations(old: nn.Module, new: nn.Module) -> None:
    """Copy hooks and parametrizations from one module to another; the mode of the children is not changed."""
    modes = {child: child.training for child in new.children()}
    copy_hooks(old, new)
    for name, parametrizations in getattr(old, "parametrizations", {}).items():
        if getattr(new, name, None) is not None:
            for parametrization in parametrizations:
                parametrize.register_parametrization(new, name, parametrization, unsafe=True)
            with torch.no_grad():
                originals = dict(new.parametrizations[name].named_parameters(recurse=False))  # type: ignore[index, union-attr]
                for original, value in parametrizations.named_parameters(recurse=False):
                    originals[original].copy_(value)
    for child, mode in modes.items():
        child.train(mode)
