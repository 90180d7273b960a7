"""Registered norms: classes with a name for specs, the arguments of that name, and a definition.

Subclassing `RegisteredNorm` with a `name` registers the class. The subclasses below add the arguments that several norms share,
so that every class has an explicit signature.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from anynorm.core.spec import CustomSpec, NormSpec, check_num_features, check_positive_int
from anynorm.core.update_rules import UpdateRule
from anynorm.errors import SpecError
from anynorm.layers.norm import CustomNorm, Norm

REGISTRY: dict[str, type[RegisteredNorm]] = {}
"""The registered classes by name."""
AFTER_AT = ("num_classes", "num_domains")
"""The arguments that follow @ in a spec; all others follow a colon."""


class RegisteredNorm(Norm):
    """A norm with a name.

    Args:
        num_features: the number of channels.
        eps: added to the variance.
        momentum: the weight of the newest batch in the running statistics; None gives all batches the same weight.
        affine: whether to add learnable affine parameters.
        track_running_stats: whether to have running statistics for inference.
        device: the device of parameters and buffers.
        dtype: the dtype of parameters and buffers.
        update_rule: a rule of `anynorm.core.update_rules`, instead of `momentum`.

    Attributes:
        name: the name in specs.
        paper: where the norm comes from.
        use: when to use it, in one or two sentences, for its page in the documentation.
        define: returns the definition for the arguments.
        arguments: the numbers in the spec with their defaults; None if there is no default.
        example: the spec that lists of norms show; the bare name if empty.
        variants: further specs of the same paper, with a description.
        hyperparameters: numbers that are not written in a spec, with their defaults.
        stat_sets_arg: the argument that gives the number of sets of statistics with soft assignment.
        formula: what is computed, if the definition does not say it.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    use: ClassVar[str] = ""
    define: ClassVar[Callable[..., NormSpec]]
    arguments: ClassVar[Mapping[str, int | None]] = {}
    example: ClassVar[str] = ""
    variants: ClassVar[Mapping[str, str]] = {}
    hyperparameters: ClassVar[Mapping[str, float]] = {}
    stat_sets_arg: ClassVar[str] = ""
    formula: ClassVar[tuple[str, ...]] = ()
    _after_colon: ClassVar[list[str]]
    _after_at: ClassVar[list[str]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in vars(cls):
            if not re.fullmatch(r"[a-z]\w*", cls.name) or cls.name != cls.name.lower():
                raise SpecError(f"{cls.__name__}.name must be a lowercase identifier, such as 'bn'; got {cls.name!r}.")
            if REGISTRY.setdefault(cls.name, cls).__qualname__ != cls.__qualname__:
                raise SpecError(
                    f"{cls.__name__}.name must be unique; {cls.name!r} is {REGISTRY[cls.name].__name__}. Choose another name."
                )
            REGISTRY[cls.name] = cls
        cls._after_colon = [argument for argument in cls.arguments if argument not in AFTER_AT]
        cls._after_at = [argument for argument in cls.arguments if argument in AFTER_AT]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        update_rule: UpdateRule | None = None,
    ) -> None:
        self._initialize(num_features, {}, eps, momentum, affine, track_running_stats, device, dtype, update_rule)

    def _initialize(
        self,
        num_features: int,
        arguments: Mapping[str, Any],
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        device: Any,
        dtype: Any,
        update_rule: UpdateRule | None,
    ) -> None:
        """Initialize the layer from its arguments; shared by the constructors of all registered classes."""
        num_features = check_num_features(num_features, self.name)
        self.check_channels(num_features)
        norm_spec = self.named_spec(self.bind([], None, {**arguments, "num_features": num_features}))
        super().__init__(
            norm_spec if affine else norm_spec.without_affine(),
            num_features,
            eps=eps,
            momentum=momentum,
            track_running_stats=track_running_stats,
            update_rule=update_rule,
            device=device,
            dtype=dtype,
        )

    @classmethod
    def check_channels(cls, num_features: int) -> None:
        """Check a number of channels beyond what the cuts check.

        Raises:
            SpecError: if the norm is not defined for it.
        """

    @classmethod
    def default_argument(cls, argument: str, keywords: Mapping[str, Any]) -> int:
        """Return the value of an argument that was not given.

        Args:
            argument: its name.
            keywords: the other arguments, with num_features and batch_size if they are known.

        Raises:
            SpecError: if it has no default.
        """
        default = cls.arguments[argument]
        if default is None:
            raise SpecError(f"{cls.name} needs {argument}: write {cls.usage()}, or pass {argument}=….")
        return default

    @classmethod
    def bind(cls, numbers: list[int], num_classes: int | None, keywords: Mapping[str, Any]) -> dict[str, int]:
        """Return all arguments, from the numbers in a spec and from the keyword arguments beside it.

        Raises:
            SpecError: if an argument is missing, out of range, given twice, or not one of this norm.
        """
        if len(numbers) > len(cls._after_colon) or (num_classes is not None and not cls._after_at):
            token = cls.name + (":" + ",".join(map(str, numbers)) if numbers else "")
            token += "" if num_classes is None else f"@{num_classes}"
            raise SpecError(f"{token} has too many numbers: write {cls.usage()}.")
        from_text: dict[str, int] = dict(zip(cls._after_colon, numbers, strict=False))
        if num_classes is not None:
            from_text[cls._after_at[0]] = num_classes
        return {argument: cls._value(argument, from_text.get(argument), keywords) for argument in cls.arguments}

    @classmethod
    def _value(cls, argument: str, from_text: int | None, keywords: Mapping[str, Any]) -> int:
        option = keywords.get(argument)
        if from_text is not None and option not in (None, from_text):
            raise SpecError(
                f"{cls.name} got {argument} twice: {from_text} in the spec and {option} as an argument. Pass it once."
            )
        value = option if from_text is None else from_text
        value = cls.default_argument(argument, keywords) if value is None else value
        return check_positive_int(value, argument, cls.name)

    @classmethod
    def named_spec(cls, arguments: Mapping[str, int]) -> NormSpec:
        """Return the definition with its name, which is also that of its cut if it is a single one without a name.

        A single argument of 1 is left out of the name if it is the default: en, not en:1.
        """
        values = [arguments[name] for name in cls._after_colon]
        text = cls.name
        if values and not values == list(cls.arguments.values()) == [1]:
            text += ":" + ",".join(map(str, values))
        for name in cls._after_at:
            text += f"@{arguments[name]}"
        norm_spec = cls.define(**arguments)
        mean, var = norm_spec.mean, norm_spec.var
        if mean == var and len(mean) == 1 and not mean[0].name:
            mean = var = (replace(mean[0], name=text),)
        custom = CustomSpec(cls.name, text, arguments.get(cls.stat_sets_arg, 0)) if issubclass(cls, CustomNorm) else None
        return replace(norm_spec, mean=mean, var=var, custom=custom, name=text)

    @classmethod
    def usage(cls) -> str:
        """Return how the name is written with its arguments.

        >>> from anynorm.layers.algebra import HeteroNorm, SandwichBatchNorm
        >>> HeteroNorm.usage(), SandwichBatchNorm.usage()
        ('hn or hn:NUM_GROUPS', 'sabn@NUM_CLASSES')
        """
        text = cls.name + (":" + ",".join(name.upper() for name in cls._after_colon) if cls._after_colon else "")
        text += "".join(f"@{name.upper()}" for name in cls._after_at)
        optional = cls._after_colon and None not in cls.arguments.values()
        return f"{cls.name} or {text}" if optional else text


class GroupedNorm(RegisteredNorm):
    """A registered norm with a number of groups; the other arguments are those of `RegisteredNorm`.

    Args:
        num_groups: the number of groups; None is the default of the norm.
    """

    def __init__(
        self,
        num_features: int,
        num_groups: int | None = None,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        update_rule: UpdateRule | None = None,
    ) -> None:
        arguments = {"num_groups": num_groups}
        self._initialize(num_features, arguments, eps, momentum, affine, track_running_stats, device, dtype, update_rule)


class ClassNorm(RegisteredNorm):
    """A registered norm with an affine per class; the other arguments are those of `RegisteredNorm`.

    Args:
        num_classes: the number of classes.
    """

    arguments = {"num_classes": None}

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        update_rule: UpdateRule | None = None,
    ) -> None:
        arguments = {"num_classes": num_classes}
        self._initialize(num_features, arguments, eps, momentum, affine, track_running_stats, device, dtype, update_rule)


class DomainNorm(RegisteredNorm):
    """A registered norm with statistics and affine per domain; the other arguments are those of `RegisteredNorm`.

    Args:
        num_domains: the number of domains.
    """

    arguments = {"num_domains": None}

    def __init__(
        self,
        num_features: int,
        num_domains: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        update_rule: UpdateRule | None = None,
    ) -> None:
        arguments = {"num_domains": num_domains}
        self._initialize(num_features, arguments, eps, momentum, affine, track_running_stats, device, dtype, update_rule)
