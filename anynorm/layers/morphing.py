"""A layer whose statistics change gradually from those of an old norm to those of a new norm, with a weight t from 0 to 1.

    mean = (1 − t) mean_old + t mean_new
    var  = (1 − t) var_old + t var_new
    y    = γ (x − mean)/√(var + ε) + β

It is a norm with the cuts of both sides, mixed by weights that are computed from t instead of learned: (1 − t) w_old + t w_new,
where w are the mixing weights of a side (1 for a single cut; for sn, the softmax of its λ, which is still trained). So running
statistics, kernels, masks, domains and synchronization are those of every norm with mixed cuts. t is a tensor: a new value needs
no compilation.

If the mean of one side only is 0 (rms), its cuts take moments about zero (`Cut.about_zero`).

A parameter of the affine that both sides have, p, counts as p + t d, where d is what conversion adds to it (`fit`). One that only
the old side has fades: (1 − t) p + t, or (1 − t) p for a shift.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anynorm.core.affine import PerChannel, PerChannelScale, PerClass, Stage, Style
from anynorm.core.cuts import Cut
from anynorm.core.mixing import Mixing, Precomputed, logits_shape
from anynorm.core.spec import AffineSpec, NormSpec
from anynorm.errors import SpecError
from anynorm.kernels.interface import Params
from anynorm.layers.norm import Norm

RESOLUTION = 2**20
"""t is a multiple of 1/RESOLUTION, so that t and 1 − t are exact in float32 and their sum is 1."""
SIDES = ("mean", "var")
_IDENTITY = {"weight": 1.0, "bias": 0.0, "class_weight": 1.0, "class_bias": 0.0}

Schedule = Callable[[float], float]
"""A function from the finished fraction of the steps, from 0 to 1, to t."""


@dataclass(frozen=True)
class Ramp:
    """A schedule of `morph`: t increases linearly from 0 to 1 between two fractions of the steps.

    Args:
        start: the fraction of the steps at which t leaves 0.
        stop: the fraction at which t reaches 1.

    Raises:
        SpecError: if they are not numbers with 0 ≤ start < stop ≤ 1.

    >>> [Ramp(stop=0.8)(progress) for progress in (0, 0.2, 0.8, 1)]
    [0.0, 0.25, 1.0, 1.0]
    """

    start: float = 0.0
    stop: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop <= 1:
            raise SpecError(f"A ramp needs 0 <= start < stop <= 1; got start={self.start!r}, stop={self.stop!r}.")

    def __call__(self, progress: float) -> float:
        """Return t at a finished fraction of the steps."""
        return min(max((progress - self.start) / (self.stop - self.start), 0.0), 1.0)


class MixedSide(NamedTuple):
    """The cuts of the mean or the variance of one side: their indices in the cuts of both sides, and how they are mixed."""

    places: tuple[int, ...]
    mixing: Mixing


@dataclass(frozen=True)
class Joint:
    """Two norms and the norm with the cuts of both.

    Attributes:
        old, new: the two definitions.
        norm_spec: the definition with the cuts of both, and the affine of the new side, or of both.
        sides: for "mean" and "var", the cuts of the old and of the new norm; none if both means are 0.
        fading: names of the parameters of the affine that only the old norm has.
    """

    old: NormSpec
    new: NormSpec
    norm_spec: NormSpec
    sides: dict[str, tuple[MixedSide, MixedSide]]
    fading: tuple[str, ...]


def join(old: NormSpec, new: NormSpec, num_features: int) -> Joint:
    """Return the norm with the cuts of two norms.

    Raises:
        SpecError: with the reason, if no layer can mix the statistics of these two norms.
    """
    _check_pair(old, new, num_features)
    is_mixed_zero = bool(old.mean) != bool(new.mean)
    cuts: dict[str, list[Cut]] = {side: [] for side in SIDES}
    sides: dict[str, list[MixedSide]] = {side: [] for side in SIDES}
    for norm_spec in (old, new):
        mean, var = ([cut.resolve(num_features) for cut in side] for side in (norm_spec.mean, norm_spec.var))
        mixings = [norm_spec.mixing, norm_spec.mixing]
        if is_mixed_zero and not mean:
            var = [replace(cut, about_zero=True, name=f"0/{cut}") for cut in var]
            mean, mixings[0] = var[:1], Precomputed()
        for side, used, mixing in zip(SIDES, (mean, var), mixings, strict=True):
            distinct = cuts[side]
            distinct += [cut for k, cut in enumerate(used) if cut not in distinct and cut not in used[:k]]
            places = tuple(distinct.index(cut) for cut in used)
            sides[side].append(MixedSide(places, mixing if len(places) > 1 else Precomputed()))
    groups = math.lcm(*[mixed.mixing.groups for pair in sides.values() for mixed in pair])
    affine, fading = _joint_affine(old.affine, new.affine)
    mean_cuts, var_cuts = (tuple(cuts[side]) for side in SIDES)
    norm_spec = NormSpec(mean_cuts, var_cuts, Precomputed(groups), affine, name=f"{old} -> {new}")
    norm_spec.resolve(num_features)
    return Joint(old, new, norm_spec, {side: (pair[0], pair[1]) for side, pair in sides.items()}, fading)


def _check_pair(old: NormSpec, new: NormSpec, num_features: int) -> None:
    for norm_spec in (old, new):
        if norm_spec.custom:
            raise SpecError(f"{norm_spec} is not defined by cuts, so its statistics cannot be mixed with others. Use convert.")
    if old.takes_style != new.takes_style:
        raise SpecError(f"only one of {old} and {new} takes a style, so they cannot share a condition. Use convert.")
    if old.num_classes and new.num_classes and old.num_classes != new.num_classes:
        raise SpecError(f"the conditions of {old} and {new} have {old.num_classes} and {new.num_classes} values. Use convert.")
    domains = {
        norm_spec.affine.num_domains
        for norm_spec in (old, new)
        if any(cut.resolve(num_features).pools_samples for cut in (*norm_spec.mean, *norm_spec.var))
    }
    if len(domains) > 1:
        raise SpecError(
            f"one of {old} and {new} pools the samples of each domain, and the other all samples; a layer cannot do both. "
            "Convert to a norm with as many domains first."
        )


def _joint_affine(old: AffineSpec, new: AffineSpec) -> tuple[AffineSpec, tuple[str, ...]]:
    """Return the affine of the new norm if it can have the values of the old one, or one with the parameters of both.

    Also return the names of the parameters that only the old norm has.
    """
    num_domains = max(old.num_domains, new.num_domains)
    before, after = ({name for stage in affine.stages for name in stage.names} for affine in (old, new))
    loses_classes = "class_weight" in before and "class_weight" not in after
    loses_bias = bool(before & {"bias", "class_bias"}) and not after & {"bias", "class_bias"}
    if not loses_classes and not loses_bias and not (before and not after):
        return AffineSpec(new.stages, num_domains), ()
    names = before | after
    stages: list[Stage] = []
    if "weight" in names:
        stages.append(PerChannel() if "bias" in names else PerChannelScale())
    if "class_weight" in names:
        stages.append(PerClass(max(old.num_classes, new.num_classes), init_std=0.0))
    stages += [Style()] if new.takes_style else []
    return AffineSpec(tuple(stages), num_domains), tuple(name for name in _IDENTITY if name in before - after)


class MorphingNorm(Norm):
    """A layer between an old and a new norm; see `anynorm.morph`, which makes these layers and replaces them at the end.

    Buffers besides those of every norm: t, num_steps, and the differences `weight_difference` and `bias_difference` that
    conversion adds to γ and β until t = 1. Parameters besides those of every norm: λ of each side that mixes cuts, such as
    `old_mean_weight`.

    Args:
        joint: the two norms.
        plain: the layer of the new norm, which replaces this layer at the end; not registered as a child.
        options: the options of every norm.
    """

    t: Tensor
    num_steps: Tensor
    weight_difference: Tensor | None
    bias_difference: Tensor | None

    def __init__(self, joint: Joint, plain: Norm, **options: Any) -> None:
        super().__init__(joint.norm_spec, plain.num_features, **options)
        self.joint, self._plain = joint, (plain,)
        self._num_steps: int | None = 0
        device, dtype = options.get("device"), options.get("dtype")
        precision = torch.float64 if dtype == torch.float64 else torch.float32
        self.register_buffer("t", torch.zeros((), device=device, dtype=precision))
        self.register_buffer("num_steps", torch.zeros((), device=device, dtype=torch.long))
        for name in ("weight", "bias"):
            parameter = None if name in joint.fading or getattr(plain, name) is None else getattr(self, name)
            difference = None if parameter is None else torch.zeros_like(parameter, requires_grad=False)
            self.register_buffer(f"{name}_difference", difference)
        for side, pair in joint.sides.items():
            num_cuts = len(joint.norm_spec.mean if side == "mean" else joint.norm_spec.var)
            for which, mixed in zip(("old", "new"), pair, strict=True):
                places = torch.zeros(len(mixed.places), num_cuts, device=device, dtype=precision)
                places[range(len(mixed.places)), mixed.places] = 1
                self.register_buffer(f"_{which}_{side}_places", places, persistent=False)
                logits = None
                if len(mixed.places) > 1:
                    ones = torch.ones(logits_shape(mixed.mixing, len(mixed.places)), device=device, dtype=dtype)
                    logits = torch.nn.Parameter(ones, mixed.mixing.is_trainable)
                self.register_parameter(f"{which}_{side}_weight", logits)

    @property
    def plain(self) -> Norm:
        """The layer of the new norm, with the values that it had at the start."""
        return self._plain[0]

    @property
    def steps_done(self) -> int:
        """The value of `num_steps`; read from the buffer once after it was loaded, because that waits for the device."""
        if self._num_steps is None:
            self._num_steps = int(self.num_steps)
        return self._num_steps

    def set_progress(self, num_steps: int, t: float) -> None:
        """Set the number of finished steps and t."""
        self._num_steps = num_steps
        self.num_steps.fill_(num_steps)
        self.t.fill_(round(t * RESOLUTION) / RESOLUTION)

    def mixing_weights(self, side: str) -> Tensor | None:
        """Return the current mixing weights of the cuts of both norms for the mean or the variance; see `Norm.mixing_weights`."""
        if side not in SIDES:
            raise SpecError(f"side must be 'mean' or 'var'; got {side!r}.")
        weights = self._mixed(side)
        return None if weights is None else self.norm_spec.mixing.weights_by_channel(weights, self.num_features)

    def tensors(self) -> dict[str, Tensor]:
        """Return the parameters of a norm with the cuts of both norms that computes the same as this layer does now."""
        named = zip(Params._fields, self._params(None), strict=True)
        return {
            name: tensor for name, tensor in named if tensor is not None and name not in ("style_mean", "style_std", "residual")
        }

    def merge(self) -> Norm:
        """Raise an error: the affine of a layer between two norms is not merged.

        Raises:
            SpecError: always.
        """
        raise SpecError(f"{self.spec} is morphing: call finish() of the report of anynorm.morph before you merge its affine.")

    def extra_repr(self) -> str:
        """Return the two specs, the number of channels, the options and t."""
        return super().extra_repr() if self.t.is_meta else f"{super().extra_repr()}, t={float(self.t):.3g}"

    def _register_parameters(self, device: Any, dtype: Any) -> None:
        super()._register_parameters(device, dtype)
        self.mean_weight = self.var_weight = None  # the weights are computed from t and λ of each side

    def _params(self, condition: Any, residual: Tensor | None = None) -> Params:
        mean, std = condition if self.norm_spec.takes_style and condition is not None else (None, None)
        affine = [self._affine_tensor(name) for name in _IDENTITY]
        return Params(*affine, self._mixed("mean"), self._mixed("var"), mean, std, residual)  # type: ignore[call-arg]

    def _affine_tensor(self, name: str) -> Tensor | None:
        """Return a parameter of the affine as it counts at the current t."""
        parameter: Tensor | None = getattr(self, name)
        if parameter is None:
            return None
        if name in self.joint.fading:
            t = self.t.to(parameter.dtype)
            return (1 - t) * parameter + _IDENTITY[name] * t
        difference = self._buffers.get(f"{name}_difference")
        return parameter if difference is None else parameter + self.t.to(parameter.dtype) * difference

    def _mixed(self, side: str) -> Tensor | None:
        """Return (1 − t) w_old + t w_new, in the shape of λ; None if both norms have the same single cut."""
        places = self._buffers[f"_old_{side}_places"]
        assert places is not None
        if places.shape[1] < 2:
            return None
        t = self.t.to(torch.float64 if self.t.dtype is torch.float64 else torch.float32)
        return (1 - t) * self._side_weights("old", side) + t * self._side_weights("new", side)

    def _side_weights(self, which: str, side: str) -> Tensor:
        """Return the mixing weights of one norm as weights of the cuts of both."""
        places: Tensor = getattr(self, f"_{which}_{side}_places")
        places = places.to(torch.float64 if places.dtype is torch.float64 else torch.float32)
        logits: Tensor | None = getattr(self, f"{which}_{side}_weight")
        mixing, groups = self.joint.sides[side][which == "new"].mixing, self.norm_spec.mixing.groups
        if logits is None:
            weights = places.sum(0)
            return weights if groups == 1 else weights.expand(groups, -1)
        weights = (mixing.weights(logits.to(places.dtype))[..., None] * places).sum(-2)
        if groups == 1:
            return weights
        return weights.expand(groups, -1) if mixing.groups == 1 else weights.repeat_interleave(groups // mixing.groups, 0)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, metadata, *rest)
        self._num_steps = None
        errors = rest[-1]
        if prefix + "t" not in state_dict and rest[0]:
            errors.append(
                f"'{prefix.removesuffix('.')}' ({self.spec}) is morphing, and the state_dict has no '{prefix}t': it was saved "
                f"before anynorm.morph or after it had finished. Load it before you call morph, or after "
                f"anynorm.convert(model, {str(self.joint.new)!r})."
            )
