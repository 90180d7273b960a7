"""The norm that replaces another: same device, dtype, mode, hooks, parametrizations and activation."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils import parametrize

from anynorm.core.cuts import divisors, largest_usable_groups
from anynorm.core.spec import PLAIN_AFFINE
from anynorm.layers.baselines.schedule import ScheduledNorm
from anynorm.layers.norm import Norm
from anynorm.layers.registered import REGISTRY
from anynorm.registry import make
from anynorm.surgery.find import NormSite
from anynorm.surgery.transfer import Transfer, transfer


class Replacement(NamedTuple):
    """A new norm, and what it was given of the old one."""

    norm: Norm
    transfer: Transfer


def make_replacement(site: NormSite, spec: str, options: dict[str, Any]) -> Replacement:
    """Make the norm of a spec that can replace the norm of a site.

    Args:
        site: a norm that can be read.
        spec: spec of the new norm.
        options: options of `anynorm.make`; they override those of the old norm. A norm without affine is replaced by one
            without, unless the spec has an affine of another kind, such as one per class.

    Raises:
        SpecError: if the spec does not fit the channels.
    """
    info = site.info
    tensors = [*info.tensors.values(), *(tensor for pair in info.running_stats.values() for tensor in pair if tensor is not None)]
    like = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
    settings: dict[str, Any] = {"eps": info.eps, "momentum": info.momentum, "update_rule": info.update_rule}
    settings |= {} if like is None else {"device": like.device, "dtype": like.dtype}
    settings["track_running_stats"] = info.track_running_stats or not info.pools_samples
    settings |= options
    norm = make(spec, info.channels, **settings)
    had_affine = any(stage.names for stage in info.norm_spec.affine.stages)
    if not had_affine and norm.norm_spec.affine == PLAIN_AFFINE and "affine" not in options:
        norm = make(spec, info.channels, **settings, affine=False)
    set_post_modules(norm, info.post_modules)
    norm.sync_group = info.sync_group
    result = transfer(info, norm, parametrized=hasattr(site.module, "parametrizations"))
    if isinstance(norm, ScheduledNorm):
        norm.set_hyperparameters(
            **{name: options[name] for name in norm.hyperparameters if name in options}
        )  # not the transferred ones
    copy_hooks_and_parametrizations(site.module, norm)
    return Replacement(norm.train(site.module.training), result)


def make_equivalent(site: NormSite, **options: Any) -> Norm:
    """Make an anynorm layer with the same spec and tensors as the norm of a site."""
    return make_replacement(site, site.info.spec, options).norm


def set_post_modules(norm: Norm, post_modules: dict[str, nn.Module]) -> None:
    """Make a norm apply modules to its output."""
    norm.post_modules = tuple(post_modules)
    for name, child in post_modules.items():
        norm.add_module(name, child)


def share_parameters(old: nn.Module, new: nn.Module) -> None:
    """Make a norm use the parameter objects of another of the same spec, so that an optimizer keeps training them."""
    for name, parameter in old._parameters.items():
        if parameter is not None and new._parameters.get(name) is not None:
            new._parameters[name] = parameter


def copy_hooks_and_parametrizations(old: nn.Module, new: nn.Module) -> None:
    """Copy hooks and parametrizations from one module to another; children keep their mode."""
    modes = {child: child.training for child in new.children()}
    for name, hooks in vars(old).items():
        if name.endswith(("hooks", "hooks_with_kwargs", "hooks_always_called")) and isinstance(hooks, dict) and hooks:
            vars(new)[name] = hooks
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


def nearest_spec(spec: str, channels: int) -> str:
    """Return the spec with the nearest group numbers that divide the channels.

    >>> nearest_spec("gn:32", 48), nearest_spec("bn/en:32", 24), nearest_spec("bgn:64", 48), nearest_spec("gbgn:4,32", 48)
    ('gn:24', 'bn/en:24', 'bgn:48', 'gbgn:4,24')
    >>> nearest_spec("gn", 8), nearest_spec("gn", 64), nearest_spec("sn", 7), nearest_spec("gn.none", 6)
    ('gn:8', 'gn', 'sn', 'gn:6.none')
    """

    def fit_term(term: re.Match[str]) -> str:
        name, written = term[1], term[2]
        row = REGISTRY.get(name)
        arguments = [] if row is None else [argument for argument in row.arguments if argument.startswith("num_")]
        if not written and row is not None and arguments == ["num_groups"]:
            written = str(row.arguments["num_groups"] or "")
        if not written:
            return term[0]
        numbers = [int(number) for number in written.split(",")]
        if not term[2] and channels % numbers[0] == 0:
            return term[0]
        for k, argument in enumerate(arguments[: len(numbers)]):
            groups = numbers[k]
            if argument == "num_groups" and groups and channels % groups:
                numbers[k] = largest_usable_groups(groups, channels) if name == "bgn" else _nearest_divisor(groups, channels)
        return f"{name}:{','.join(map(str, numbers))}"

    return re.sub(r"\b([a-z]+)(?::(\d+(?:,\d+)*))?(?![\w:@])", fit_term, spec)


def _nearest_divisor(groups: int, channels: int) -> int:
    return min(divisors(channels), key=lambda divisor: (abs(divisor - groups), divisor))
