"""From the text of a spec to a layer, and the list of all named norms.

To register a norm of your own, subclass `anynorm.layers.registered.RegisteredNorm` as the classes of `anynorm.layers.algebra` do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from anynorm.core import grammar
from anynorm.core.spec import NormSpec, check_num_features
from anynorm.core.update_rules import UpdateRule
from anynorm.errors import SpecError
from anynorm.layers import algebra, baselines  # noqa: F401  # their classes register themselves
from anynorm.layers.norm import Norm
from anynorm.layers.registered import REGISTRY, RegisteredNorm


def parse(spec: str, **arguments: Any) -> NormSpec:
    """Return the definition of the norm that a spec names.

    Args:
        spec: the text; its grammar is in `anynorm.core.grammar`.
        arguments: numbers that the spec leaves open: num_groups, num_classes, …; batch_size and num_features for bgn's rule.

    Raises:
        SpecError: if the text is not a spec or an argument is missing.

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
    """Return a layer for a spec.

    Args:
        spec: such as "bn", "hn:32", "bn/en:32", "in+ln+bn" or "sabn@10".
        num_features: the number of channels.
        eps: added to the variance.
        momentum: the weight of the newest batch in the running statistics; None gives all batches the same weight.
        affine: whether to add learnable affine parameters.
        track_running_stats: whether to have running statistics for inference.
        update_rule: a rule of `anynorm.core.update_rules`, instead of `momentum`.
        device: the device of parameters and buffers.
        dtype: the dtype of parameters and buffers.
        arguments: arguments of the named norms in the spec that it leaves open, such as num_groups, num_classes, num_domains or
            num_samples; batch_size, from which bgn chooses its number of groups, is accepted by every spec.

    Raises:
        SpecError: if the spec, the number of channels or an argument is not usable.

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


class Entry(NamedTuple):
    """A norm of the zoo: a spec that can be constructed, its class, a description and its paper."""

    spec: str
    norm: type[Norm]
    summary: str
    paper: str


def summary(norm_class: type[RegisteredNorm]) -> str:
    """Return the first line of a registered class's docstring."""
    return (norm_class.__doc__ or "").splitlines()[0].rstrip(".")


def zoo() -> list[Entry]:
    """Return every named norm and the papers' variants of it, each by a spec that can be constructed.

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
