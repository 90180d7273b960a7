"""Construction of layers from specs, and the list of all registered norms.

To register your own norm, subclass `anynorm.layers.registered.RegisteredNorm`, as the classes in `anynorm.norms` do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from anynorm import norms as algebra  # noqa: F401  # their classes register themselves
from anynorm.core import grammar
from anynorm.core.cuts import divisors, largest_usable_groups
from anynorm.core.spec import NormSpec, check_num_features
from anynorm.core.update_rules import UpdateRule
from anynorm.errors import SpecError
from anynorm.layers import baselines  # noqa: F401  # their classes register themselves
from anynorm.layers.norm import Norm
from anynorm.layers.registered import REGISTRY, RegisteredNorm


def parse(spec: str, **arguments: Any) -> NormSpec:
    """Parse a spec into the definition of a norm.

    Args:
        spec: the spec string; see `anynorm.core.grammar` for its grammar.
        arguments: arguments that are not in the spec string, such as num_groups or num_classes; batch_size and num_features are
            used by bgn, which chooses its number of groups from them.

    Raises:
        SpecError: if the spec is invalid, or an argument is missing or unknown.

    >>> parse("hn:32") == parse("bn/en:32")
    True
    >>> print(parse("bgn", batch_size=4, num_features=64))
    bgn:2
    """
    parsed = grammar.parse(spec, REGISTRY, arguments)
    _check_arguments(spec, arguments, {*parsed.usable, "batch_size", "num_features"})
    return parsed.norm_spec


def _check_arguments(spec: str, arguments: Iterable[str], usable: set[str]) -> None:
    for name in arguments:
        if name not in usable:
            raise SpecError(
                f"{spec} takes no argument {name!r}. Usable: {' '.join(sorted(usable))}, and those of torch's layers (eps, …)."
            )


def make(
    spec: str,
    num_features: int,
    *,
    eps: float = 1e-5,
    momentum: float | None = 0.1,
    affine: bool = True,
    track_running_stats: bool = True,
    update_rule: UpdateRule | None = None,
    device: Any = None,
    dtype: Any = None,
    **arguments: Any,
) -> Norm:
    """Make a normalization layer from a spec.

    Args:
        spec: the spec string, such as "bn", "hn:32", "bn/en:32", "in+ln+bn" or "sabn@10".
        num_features: number of channels.
        eps: value added to the variance for numerical stability.
        momentum: weight of the newest batch in the running statistics; None for a cumulative average over all batches.
        affine: whether to add learnable affine parameters.
        track_running_stats: whether to track running statistics for inference.
        update_rule: update rule of the running statistics (see `anynorm.core.update_rules`); replaces `momentum`.
        device: device of parameters and buffers.
        dtype: dtype of parameters and buffers.
        arguments: arguments of the norms that are not in the spec string, such as num_groups, num_classes, num_domains or
            num_samples, and hyperparameters of the norm. Every spec accepts batch_size, which only bgn uses, to choose its
            number of groups.

    Raises:
        SpecError: if the spec, the number of channels or an argument is invalid.

    >>> make("hn:32", 64)
    HeteroNorm('hn:32', 64, eps=1e-05, momentum=0.1)
    >>> make("bgn", 48, batch_size=8).spec
    'bgn:16'
    """
    keywords = {**arguments, "num_features": check_num_features(num_features, spec)}
    parsed = grammar.parse(spec, REGISTRY, keywords)
    norm_class = parsed.norm_class
    hyperparameters = norm_class.hyperparameters if norm_class else {}
    _check_arguments(spec, arguments, {*parsed.usable, *hyperparameters, "batch_size"})
    options = {
        "eps": eps,
        "momentum": momentum,
        "track_running_stats": track_running_stats,
        "update_rule": update_rule,
        "device": device,
        "dtype": dtype,
    }
    if norm_class is None:
        return Norm(parsed.norm_spec if affine else parsed.norm_spec.without_affine(), num_features, **options)
    options |= {name: arguments[name] for name in hyperparameters if name in arguments}
    has_affine = affine and bool(parsed.norm_spec.affine.stages)
    norm: Norm = norm_class(num_features, **parsed.arguments, affine=has_affine, **options)
    return norm


def layer(spec: str, *, groups: str = "exact", **options: Any) -> Callable[..., Norm]:
    """Return a function that makes a layer for a number of channels, for code that expects a class such as nn.BatchNorm2d.

    Pass it as `norm_layer=` to torchvision's and timm's networks, or as `norm=` to detectron2's layers. It can be pickled.

    Args:
        spec: the spec string; see `make`.
        groups: "exact" to raise an error if a number of groups does not divide the number of channels; "nearest" to use the
            nearest number that does.
        options: keyword arguments of `make`; keyword arguments of the returned function, such as device, override them.

    Raises:
        SpecError: if `groups` is neither "exact" nor "nearest". Other arguments are checked when the function is called.

    >>> norm_layer = layer("gn:32", groups="nearest", eps=1e-3)
    >>> norm_layer(64), norm_layer(24)
    (GroupNorm('gn:32', 64, eps=0.001), GroupNorm('gn:24', 24, eps=0.001))
    """
    if groups not in ("exact", "nearest"):
        raise SpecError(f"groups must be 'exact' or 'nearest'; got {groups!r}.")
    # only keywords: timm takes a partial apart and drops its positional arguments
    return partial(_make_layer, spec=spec, groups=groups, **options)


def _make_layer(num_features: int, *, spec: str, groups: str, **options: Any) -> Norm:
    return make(nearest_spec(spec, num_features) if groups == "nearest" else spec, num_features, **options)


def nearest_spec(spec: str, channels: int) -> str:
    """Replace each number of groups in a spec by the nearest one that divides the number of channels.

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


class Entry(NamedTuple):
    """A norm of the zoo: a complete spec, its class, a description and its paper."""

    spec: str
    norm: type[Norm]
    summary: str
    paper: str


def summary(norm_class: type[RegisteredNorm]) -> str:
    """Return the first line of a registered class's docstring."""
    return (norm_class.__doc__ or "").splitlines()[0].rstrip(".")


def zoo() -> list[Entry]:
    """Return all registered norms and the variants of their papers, each with a spec that `make` accepts.

    >>> [entry.spec for entry in zoo()][:4]
    ['bn', 'in', 'ln', 'gn:32']
    """
    entries = []
    for norm_class in REGISTRY.values():
        entries.append(Entry(norm_class.example or norm_class.name, norm_class, summary(norm_class), norm_class.paper))
        for spec, description in norm_class.variants.items():
            kind = grammar.parse(spec, REGISTRY, {}).norm_class or Norm
            entries.append(Entry(spec, kind, description, norm_class.paper))
    return entries
