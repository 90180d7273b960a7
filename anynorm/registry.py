"""Construction of layers from specs, and the list of all registered norms.

To register your own norm, subclass `anynorm.layers.registered.RegisteredNorm`, as the classes in `anynorm.norms` do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from anynorm import norms as algebra  # noqa: F401  # their classes register themselves
from anynorm.core import grammar
from anynorm.core.activation import Activation
from anynorm.core.spec import SCALE_AFFINE, NormSpec
from anynorm.core.update_rules import UpdateRule
from anynorm.errors import SpecError
from anynorm.layers import baselines  # noqa: F401  # their classes register themselves
from anynorm.layers.norm import Norm, NormOptions
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


def _check_arguments(spec: str | NormSpec, arguments: Iterable[str], usable: set[str]) -> None:
    for name in arguments:
        if name not in usable:
            raise SpecError(
                f"{spec} takes no argument {name!r}. Usable: {' '.join(sorted(usable))}, and those of torch's layers (eps, …)."
            )


def make(
    spec: str | NormSpec,
    num_features: int | None,
    *,
    eps: float = 1e-5,
    momentum: float | None = 0.1,
    affine: bool = True,
    track_running_stats: bool = True,
    device: Any = None,
    dtype: Any = None,
    update_rule: UpdateRule | None = None,
    activation: str | Activation | None = None,
    bias: bool = True,
    single_value: str = "error",
    channel_axis: int = 1,
    **arguments: Any,
) -> Norm:
    """Make a normalization layer from a spec.

    Args:
        spec: the spec string, such as "bn", "hn:32", "bn/en:32", "in+ln+bn" or "sabn@10", or a definition from `parse`.
        num_features: number of channels; None for a layer that takes it from its first input, as torch's lazy layers do.
        eps: value added to the variance for numerical stability.
        momentum: weight of the newest batch in the running statistics; None for a cumulative average over all batches.
        affine: whether to add learnable affine parameters.
        track_running_stats: whether to track running statistics for inference.
        device: device of parameters and buffers.
        dtype: dtype of parameters and buffers.
        update_rule: update rule of the running statistics (see `anynorm.core.update_rules`); replaces `momentum`.
        activation: activation that is applied to the output in the same pass: relu, relu6, leaky_relu, silu, gelu, gelu_tanh,
            hardswish; None without one.
        bias: whether the affine per channel has a shift β; False for a scale γ alone, as in torch.
        single_value: for a training batch with a single value per statistic of a cut that pools samples, as the last batch of an
            epoch may have: "error" to raise an error; "running" to normalize by running statistics, as in inference, and to
            update nothing.
        channel_axis: axis of the channels in the input: 1 for (n, c, …), -1 for (n, …, c), such as tokens (n, t, c).
        arguments: arguments of the norms that are not in the spec string, such as num_groups, num_classes, num_domains or
            num_samples, and hyperparameters of the norm. Every spec accepts batch_size, which only bgn uses, to choose its
            number of groups.

    Raises:
        SpecError: if the spec, the number of channels or an argument is invalid.

    >>> make("hn:32", 64)
    HeteroNorm('hn:32', 64, eps=1e-05, momentum=0.1)
    >>> make("bgn", 48, batch_size=8).spec
    'bgn:16'
    >>> make("pn", 64, channel_axis=-1)  # nn.LayerNorm(64) for tokens (n, t, 64)
    PositionalNorm('pn', 64, eps=1e-05, channel_axis=-1)
    """
    if num_features is None:
        options: dict[str, Any] = {"eps": eps, "momentum": momentum, "affine": affine, "bias": bias}
        options |= {"track_running_stats": track_running_stats, "update_rule": update_rule, "activation": activation}
        lazy: Any = _make_lazy(spec, channel_axis, device, dtype, options | {"single_value": single_value} | arguments)
        return lazy  # type: ignore[no-any-return]
    usable: set[str] = set()
    if isinstance(spec, str):
        spec, usable = grammar.parse(spec, REGISTRY, {**arguments, "num_features": num_features})
    elif not isinstance(spec, NormSpec):
        raise SpecError(f"A spec must be a string such as 'bn' or 'hn:32'; got {spec!r}.{_order_hint(spec, num_features)}")
    norm_class = REGISTRY.get(spec.class_name, Norm)
    hyperparameters: dict[str, Any] = {}
    if arguments:
        _check_arguments(spec, arguments, {*usable, *norm_class.hyperparameters, "batch_size"})
        hyperparameters = {name: arguments[name] for name in norm_class.hyperparameters if name in arguments}
    return norm_class.from_spec(
        spec,
        num_features,
        eps=eps,
        momentum=momentum,
        affine=affine,
        track_running_stats=track_running_stats,
        device=device,
        dtype=dtype,
        update_rule=update_rule,
        activation=activation,
        bias=bias,
        single_value=single_value,
        channel_axis=channel_axis,
        **hyperparameters,
    )


def _make_lazy(spec: str | NormSpec, channel_axis: int, device: Any, dtype: Any, options: dict[str, Any]) -> Any:
    """Return a layer that makes the norm of a spec at its first forward pass, when it knows the number of channels."""
    from anynorm.layers.lazy import LazyNorm

    arguments, _ = split_options(options)
    norm_spec = parse(spec, num_features=None, **arguments) if isinstance(spec, str) else spec
    made = partial(make, spec, channel_axis=channel_axis, **options)
    return LazyNorm(str(norm_spec), made, channel_axis=channel_axis, device=device, dtype=dtype)


def _order_hint(spec: object, num_features: object) -> str:
    return f" The spec comes first: make({num_features!r}, {spec!r})." if isinstance(num_features, str) else ""


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
    if groups == "exact":
        return make(spec, num_features, **options)
    arguments, layer_options = split_options(options)
    return make(nearest_spec(parse(spec, num_features=num_features, **arguments), num_features), num_features, **layer_options)


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split keyword arguments of `make` into those that belong to the spec, such as num_groups, and those of the layer.

    >>> split_options({"num_classes": 10, "eps": 1e-3})
    ({'num_classes': 10}, {'eps': 0.001})
    """
    hyperparameters = {name for norm_class in REGISTRY.values() for name in norm_class.hyperparameters}
    of_layer = {name: value for name, value in options.items() if name in NormOptions.__annotations__ or name in hyperparameters}
    return {name: value for name, value in options.items() if name not in of_layer}, of_layer


def nearest_spec(norm_spec: NormSpec, num_features: int) -> NormSpec:
    """Return a norm with the nearest numbers of groups that divide a number of channels.

    >>> [str(nearest_spec(parse(spec), 48)) for spec in ("gn:32", "bn/en:32", "bgn:64", "gbgn:4,32", "gn:32.none", "sn")]
    ['gn:24', 'bn/en:24', 'bgn:48', 'gbgn:4,24', 'gn:24.none', 'sn']
    """
    norm_class = REGISTRY.get(norm_spec.class_name)
    if norm_class is None:
        return norm_spec.nearest(num_features)
    num_groups = norm_spec.arguments.get("num_groups")
    if num_groups is None:
        return norm_spec
    nearest = norm_class.nearest_groups(num_groups, num_features)
    if nearest == num_groups:
        return norm_spec
    changed = norm_class.named_spec({**norm_spec.arguments, "num_groups": nearest})
    if changed.affine == norm_spec.affine:
        return changed
    return changed.without_bias() if norm_spec.affine == SCALE_AFFINE else changed.without_affine()


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
            kind = REGISTRY.get(parse(spec).class_name, Norm)
            entries.append(Entry(spec, kind, description, norm_class.paper))
    return entries
