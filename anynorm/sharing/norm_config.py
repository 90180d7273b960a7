"""The definition and all options of a norm as plain values, from a layer and back.

The spec names cuts, affine and numbers; the options are those of `anynorm.make`. Conditions and masks of a forward pass, the
process group of `anynorm.sync`, hooks and `requires_grad` are not part of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from anynorm.core.activation import Activation
from anynorm.core.spec import NormSpec
from anynorm.core.update_rules import Cumulative, CumulativeBiased, Frozen, Pooled, Running, UpdateRule
from anynorm.errors import AnynormError, SpecError, SurgeryError
from anynorm.layers.baselines.schedule import ScheduledNorm
from anynorm.layers.norm import Norm
from anynorm.layers.registered import REGISTRY
from anynorm.registry import make, parse

UPDATE_RULES: dict[str, type[UpdateRule]] = {
    "running": Running,
    "cumulative": Cumulative,
    "cumulative_biased": CumulativeBiased,
    "pooled": Pooled,
    "frozen": Frozen,
}
"""The update rules by name."""


@dataclass(frozen=True)
class NormConfig:
    """A norm of a model.

    Args:
        paths: all paths of the norm in the model.
        spec: the spec string.
        num_features: number of channels.
        affine: as in `anynorm.make`.
        bias: as in `anynorm.make`.
        eps: value added to the variance.
        update_rule: name of the update rule, a key of `UPDATE_RULES`.
        momentum: weight of the newest batch, for the update rule "running"; None for all others.
        track_running_stats: whether running statistics are tracked.
        activation: name of the activation; None without one.
        negative_slope: slope of leaky_relu; None for all other activations.
        single_value: "error" or "running".
        channel_axis: axis of the channels.
        schedule_enabled: whether training advances the schedule of a norm that has one.
        hyperparameters: numbers that are not part of the spec, by name.
        post_modules: names of the child modules that are applied to the output; the base model has the modules.
    """

    paths: tuple[str, ...]
    spec: str
    num_features: int
    affine: bool
    bias: bool
    eps: float
    update_rule: str
    momentum: float | None
    track_running_stats: bool
    activation: str | None
    negative_slope: float | None
    single_value: str
    channel_axis: int
    schedule_enabled: bool
    hyperparameters: dict[str, float]
    post_modules: tuple[str, ...]

    @property
    def path(self) -> str:
        """The first path of the norm."""
        return self.paths[0]


def read_config(norm: Norm, paths: Iterable[str]) -> NormConfig:
    """Return the definition and options of a norm.

    Raises:
        SurgeryError: if no spec has the definition of the norm.
    """
    spec, affine, bias = _spec_of(norm.norm_spec)
    activation, rule = norm.activation, norm.update_rule
    leaky = activation is not None and activation.name == "leaky_relu"
    return NormConfig(
        paths=tuple(paths),
        spec=spec,
        num_features=norm.num_features,
        affine=affine,
        bias=bias,
        eps=norm.eps,
        update_rule=next(name for name, kind in UPDATE_RULES.items() if type(rule) is kind),
        momentum=rule.rate if isinstance(rule, Running) else None,
        track_running_stats=norm.track_running_stats,
        activation=None if activation is None else activation.name,
        negative_slope=activation.negative_slope if activation is not None and leaky else None,
        single_value=norm.single_value,
        channel_axis=norm.channel_axis,
        schedule_enabled=norm.schedule_enabled,
        hyperparameters=_hyperparameters(norm),
        post_modules=norm.post_modules,
    )


def _spec_of(norm_spec: NormSpec) -> tuple[str, bool, bool]:
    """Return a spec string, `affine` and `bias`, with which `make` makes a norm of this definition and of the same class."""
    text = str(norm_spec)
    if norm_spec.class_name:
        text = str(REGISTRY[norm_spec.class_name].named_spec(norm_spec.arguments))
    for affine, bias in ((True, True), (False, True), (True, False)):
        try:
            made = parse(text)
            made = made if affine else made.without_affine()
            made = made if bias else made.without_bias()
        except SpecError:
            continue
        if made == norm_spec and made.class_name == norm_spec.class_name:
            return text, affine, bias
    raise SurgeryError(f"no spec has its definition ({text}): only norms that anynorm.make can make from a text can be saved.")


def _hyperparameters(norm: Norm) -> dict[str, float]:
    initial: dict[str, float] = norm._initial if isinstance(norm, ScheduledNorm) else vars(norm)
    return {name: float(initial[name]) for name in norm.hyperparameters}


def make_norm(config: NormConfig, device: Any) -> Norm:
    """Make the norm of a config, with new values of all tensors.

    Raises:
        SpecError: if the spec or an option is invalid.
    """
    rule = UPDATE_RULES[config.update_rule]
    known = REGISTRY.get(parse(config.spec, num_features=config.num_features).class_name, Norm).hyperparameters
    if {*config.hyperparameters} != {*known}:
        raise SpecError(f"{config.spec} has the hyperparameters {sorted(known)}; got {sorted(config.hyperparameters)}.")
    activation = None
    if config.activation is not None:
        slope = {} if config.negative_slope is None else {"negative_slope": config.negative_slope}
        activation = Activation(config.activation, **slope)
    norm = make(
        config.spec,
        config.num_features,
        eps=config.eps,
        affine=config.affine,
        bias=config.bias,
        update_rule=Running(config.momentum) if config.momentum is not None else rule(),
        track_running_stats=config.track_running_stats,
        activation=activation,
        single_value=config.single_value,
        channel_axis=config.channel_axis,
        device=device,
        **config.hyperparameters,
    )
    norm.schedule_enabled = config.schedule_enabled
    return norm


def make_norms(configs: Iterable[NormConfig], devices: Iterable[Any]) -> list[Norm]:
    """Make the norms of configs, and connect those that depend on each other in their order, as `anynorm.convert` does.

    Raises:
        SpecError: if the spec or an option of a norm is invalid; the message has its path.
    """
    norms: list[Norm] = []
    for config, device in zip(configs, devices, strict=True):
        try:
            norms.append(make_norm(config, device))
        except AnynormError as error:
            raise SpecError(f"'{config.path}': {error}") from None
    for kind in {type(norm): None for norm in norms}:
        kind.connect([norm for norm in norms if type(norm) is kind])
    return norms


def difference(norm: Norm, made: Norm) -> str:
    """Return how a norm differs from the norm that was made from its config; "" if it does not.

    The values of tensors may differ; their names and shapes, of children other than the post modules too, may not.
    """
    if type(norm) is not type(made):
        return f"its class is {type(norm).__name__}, that of {made.spec} is {type(made).__name__}"
    children = set(norm._modules) - set(norm.post_modules)
    if children:
        return f"it has further modules ({' '.join(sorted(children))}), such as parametrizations"
    old, new = (_shapes(each) for each in (norm, made))
    if old != new:
        changed = sorted({*old.items()} ^ {*new.items()})
        return (
            f"its tensors differ from those of a new {made.spec}: {', '.join(f'{name} {shape}' for name, shape in changed[:4])}"
        )
    return ""


def _shapes(norm: nn.Module) -> dict[str, tuple[int, ...]]:
    tensors = {**norm._parameters, **norm._buffers}
    return {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}
