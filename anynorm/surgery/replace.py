"""Making the norm that takes another's place: the same device, dtype, mode, hooks, parametrizations and fused activation."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from anynorm.core.cuts import divisors, nearest_groups
from anynorm.layers.norm import Norm
from anynorm.layers.registered import REGISTRY, RegisteredNorm
from anynorm.registry import make
from anynorm.surgery.adapters import NormInfo
from anynorm.surgery.find import NormSite
from anynorm.surgery.transfer import carry


def replacement(site: NormSite, reading: NormInfo, spec: str, options: dict[str, Any]) -> tuple[Norm, list[str], list[str]]:
    """Make what takes a site's place, and say what it carries on and what is lost."""
    like = next((t for t in [*reading.tensors.values(), *_kept(reading)] if t.is_floating_point()), None)
    settings: dict[str, Any] = {"eps": reading.eps, "momentum": reading.momentum, "update_rule": reading.update_rule}
    settings |= {} if like is None else {"device": like.device, "dtype": like.dtype}
    pooled = any(cut.pools_samples for cut in reading.norm_spec.fit(reading.channels).cuts)
    settings["track_running_stats"] = reading.tracks or not pooled
    norm = make(spec, reading.channels, **(settings | options))
    fuse(norm, reading.post_modules)
    norm.sync_group = reading.sync_group
    carried, lost = carry(reading, norm, parametrized=hasattr(site.module, "parametrizations"))
    if isinstance(norm, RegisteredNorm):
        norm.set({name: options[name] for name in norm.settings if name in options})  # over what was carried
    copy_surroundings(site.module, norm)
    return norm.train(site.module.training), carried, lost


def fuse(norm: Norm, then: dict[str, nn.Module]) -> None:
    """Let modules run after a norm, as part of it."""
    norm.post_modules = tuple(then)
    for name, child in then.items():
        norm.add_module(name, child)


def _kept(reading: NormInfo) -> list[Tensor]:
    return [tensor for pair in reading.running_stats.values() for tensor in pair if tensor is not None]


def share_parameters(old: nn.Module, new: nn.Module) -> None:
    """Let a norm of the same kind own the very parameters of the one it stands for, so that an optimizer goes on with them."""
    for name, parameter in old._parameters.items():
        if parameter is not None and new._parameters.get(name) is not None:
            new._parameters[name] = parameter


def copy_surroundings(old: nn.Module, new: nn.Module) -> None:
    """Give hooks and parametrizations on; children keep their own mode."""
    modes = {child: child.training for child in new.children()}
    for name, hooks in vars(old).items():
        if name.endswith(("hooks", "hooks_with_kwargs", "hooks_always_called")) and isinstance(hooks, dict) and hooks:
            vars(new)[name] = hooks
    for name, chain in getattr(old, "parametrizations", {}).items():
        if getattr(new, name, None) is not None:
            for step in chain:
                parametrize.register_parametrization(new, name, step, unsafe=True)
            with torch.no_grad():
                fresh = dict(new.parametrizations[name].named_parameters(recurse=False))  # type: ignore[index, union-attr]
                for inner, value in chain.named_parameters(recurse=False):
                    fresh[inner].copy_(value)
    for child, mode in modes.items():
        child.train(mode)


def _nearest(wanted: int, numbers: list[int]) -> int:
    return min(numbers, key=lambda number: (abs(number - wanted), number))


def nearest_spec(spec: str, channels: int) -> str:
    """Write the nearest group numbers that fit a channel count.

    >>> nearest_spec("gn:32", 48), nearest_spec("bn/en:32", 24), nearest_spec("bgn:64", 48), nearest_spec("gbgn:4,32", 48)
    ('gn:24', 'bn/en:24', 'bgn:48', 'gbgn:4,24')
    >>> nearest_spec("gn", 8), nearest_spec("gn", 64), nearest_spec("sn", 7), nearest_spec("gn.none", 6)
    ('gn:8', 'gn', 'sn', 'gn:6.none')
    """

    def fit(term: re.Match[str]) -> str:
        row = REGISTRY.get(term[1])
        plain = [] if row is None else [argument for argument in row.arguments if argument.startswith("num_")]
        written = term[2] or (str(row.arguments["num_groups"] or "") if row is not None and plain == ["num_groups"] else "")
        if not written:
            return term[0]
        numbers = [int(number) for number in written.split(",")]
        if not term[2] and channels % numbers[0] == 0:
            return term[0]
        for k, argument in enumerate(plain[: len(numbers)]):
            if argument == "num_groups" and numbers[k] and channels % numbers[k]:
                below = nearest_groups(numbers[k], channels)
                numbers[k] = below if term[1] == "bgn" else _nearest(numbers[k], divisors(channels))
        return f"{term[1]}:{','.join(map(str, numbers))}"

    return re.sub(r"\b([a-z]+)(?::(\d+(?:,\d+)*))?(?![\w:@])", fit, spec)
