"""Base classes of registered norms, which can be used by name in specs.

Subclassing `RegisteredNorm` with a `name` registers the class. `GroupedNorm`, `ClassNorm` and `DomainNorm` add an argument that
several norms share.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from anynorm.core.activation import Activation
from anynorm.core.cuts import nearest_divisor
from anynorm.core.spec import CustomSpec, NormSpec, check_positive_int
from anynorm.core.update_rules import UpdateRule
from anynorm.errors import SpecError
from anynorm.layers.norm import CustomNorm, Norm, NormOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

REGISTRY: dict[str, type[RegisteredNorm]] = {}
"""The registered classes by name."""
AFTER_AT = ("num_classes", "num_domains")
"""The arguments that follow @ in a spec; all others follow a colon."""


class RegisteredOptions(NormOptions, total=False):
    """The options of every registered norm.

    Args:
        norm_spec: the definition of the norm, if it has been parsed; `anynorm.make` passes it, so that it is built once.
    """

    norm_spec: NormSpec | None


class RegisteredNorm(Norm):
    """Base class of registered norms.

    Args:
        num_features: number of channels.
        eps: value added to the variance for numerical stability.
        momentum: weight of the newest batch in the running statistics; None for a cumulative average over all batches.
        affine: whether to add learnable affine parameters.
        track_running_stats: whether to track running statistics for inference.
        device: device of parameters and buffers.
        dtype: dtype of parameters and buffers.
        update_rule: update rule of the running statistics (see `anynorm.core.update_rules`); replaces `momentum`.
        activation: activation that is applied to the output in the same pass, such as "relu"; None without one.
        bias: whether the affine per channel has a shift β; False for a scale γ alone, as in torch.
        channel_axis: axis of the channels in the input: 1 for (n, c, …), -1 for (n, …, c), such as tokens (n, t, c).
        norm_spec: the definition of the norm, if it has been parsed; `anynorm.make` passes it.

    Attributes:
        name: the name in specs.
        paper: the source of the norm.
        use: when to use the norm, in one or two sentences, for its page in the documentation.
        define: a function of `arguments` that returns the definition of the norm.
        arguments: names and defaults of the numbers in a spec; None if there is no default.
        example: the spec that lists of norms show; if empty, the name.
        variants: further specs of the same paper, with descriptions.
        stat_sets_arg: name of the argument that is the number of sets of statistics with soft assignment; empty without one.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    use: ClassVar[str] = ""
    define: ClassVar[Callable[..., NormSpec]]
    arguments: ClassVar[Mapping[str, int | None]] = {}
    example: ClassVar[str] = ""
    variants: ClassVar[Mapping[str, str]] = {}
    stat_sets_arg: ClassVar[str] = ""
    _after_colon: ClassVar[list[str]]
    _after_at: ClassVar[list[str]]
    __signature__: ClassVar[inspect.Signature]

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
        cls.__signature__ = _signature(cls)

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
        activation: str | Activation | None = None,
        bias: bool = True,
        channel_axis: int = 1,
        norm_spec: NormSpec | None = None,
    ) -> None:
        self._initialize(
            num_features,
            {},
            eps=eps,
            momentum=momentum,
            affine=affine,
            track_running_stats=track_running_stats,
            device=device,
            dtype=dtype,
            update_rule=update_rule,
            activation=activation,
            bias=bias,
            channel_axis=channel_axis,
            norm_spec=norm_spec,
        )

    def _initialize(
        self,
        num_features: int,
        arguments: Mapping[str, Any],
        *,
        norm_spec: NormSpec | None = None,
        **options: Unpack[NormOptions],
    ) -> None:
        """Initialize the layer for the values of its arguments; called by the constructors of all registered classes.

        Args:
            num_features: number of channels.
            arguments: the values of `arguments`; None for a default.
            norm_spec: the definition of the norm, if it is known already.
            options: the options of every norm.
        """
        self.check_channels(num_features)
        if norm_spec is None:
            norm_spec = self.named_spec(self.bind([], None, {**arguments, "num_features": num_features}))
        super().__init__(norm_spec, num_features, **options)

    @classmethod
    def from_spec(cls, norm_spec: NormSpec, num_features: int, **options: Any) -> RegisteredNorm:
        """Make the layer of a definition of this class; `options` are those of the constructor."""
        arguments: dict[str, Any] = {**norm_spec.arguments, **options}
        return cls(num_features, norm_spec=norm_spec, **arguments)

    @classmethod
    def check_channels(cls, num_features: int) -> None:
        """Check a number of channels; for norms with requirements beyond those of their cuts.

        Raises:
            SpecError: if the norm does not support this number of channels.
        """

    @classmethod
    def default_argument(cls, argument: str, keywords: Mapping[str, Any]) -> int:
        """Return the default value of an argument.

        Args:
            argument: the name of the argument.
            keywords: the other arguments, with num_features and batch_size if they are known.

        Raises:
            SpecError: if the argument has no default.
        """
        default = cls.arguments[argument]
        if default is None:
            raise SpecError(f"{cls.name} needs {argument}: write {cls.usage()}, or pass {argument}=….")
        return default

    @classmethod
    def bind(cls, numbers: list[int], num_classes: int | None, keywords: Mapping[str, Any]) -> dict[str, int]:
        """Return the values of all arguments of this norm.

        Args:
            numbers: the numbers after the colon of a spec.
            num_classes: the number after @ of a spec; None without one.
            keywords: keyword arguments that were passed in addition to the spec.

        Raises:
            SpecError: if an argument is missing, out of range, or given twice, or if there are too many numbers.
        """
        if len(numbers) > len(cls._after_colon) or (num_classes is not None and not cls._after_at):
            token = cls.name + (":" + ",".join(map(str, numbers)) if numbers else "")
            token += "" if num_classes is None else f"@{num_classes}"
            raise SpecError(f"{token} has too many numbers: write {cls.usage()}.")
        values: dict[str, int] = dict(zip(cls._after_colon, numbers, strict=False))
        if num_classes is not None:
            values[cls._after_at[0]] = num_classes
        for argument in cls.arguments:
            values[argument] = cls._value(argument, values.get(argument), keywords)
        return values

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
        """Return the definition of the norm, named by its spec string.

        If the norm has a single cut without a name, the cut gets the same name. A single argument that is equal to its default
        of 1 is omitted from the name: en, not en:1.
        """
        text = cls.name
        if cls._after_colon and not list(arguments.values()) == list(cls.arguments.values()) == [1]:
            text += ":" + ",".join([str(arguments[name]) for name in cls._after_colon])
        for name in cls._after_at:
            text += f"@{arguments[name]}"
        norm_spec = cls.define(**arguments)
        mean, var = norm_spec.mean, norm_spec.var
        if mean == var and len(mean) == 1 and not mean[0].name:
            mean = var = (replace(mean[0], name=text),)
        custom = CustomSpec(text, arguments.get(cls.stat_sets_arg, 0)) if issubclass(cls, CustomNorm) else None
        return replace(norm_spec, mean=mean, var=var, custom=custom, name=text, class_name=cls.name, arguments=dict(arguments))

    @classmethod
    def nearest_groups(cls, num_groups: int, num_features: int) -> int:
        """Return the number of groups nearest to `num_groups` that divides a number of channels."""
        return nearest_divisor(num_groups, num_features)

    @classmethod
    def equations(cls) -> list[str]:
        """Return the equations of the norm: the indented lines of its docstring before the arguments.

        >>> from anynorm.norms import HeteroNorm
        >>> HeteroNorm.equations()
        ['y = γ (x − μ[bn])/√(σ²[en:g] + ε) + β']
        """
        description = re.split(r"\n(?:Args|Attributes):", inspect.cleandoc(cls.__doc__ or ""))[0]
        return [line.strip() for line in description.splitlines() if line.startswith("    ")]

    @classmethod
    def usage(cls) -> str:
        """Return the notation of the norm with its arguments in a spec.

        >>> from anynorm.norms import HeteroNorm, SandwichBatchNorm
        >>> HeteroNorm.usage(), SandwichBatchNorm.usage()
        ('hn or hn:NUM_GROUPS', 'sabn@NUM_CLASSES')
        """
        text = cls.name + (":" + ",".join(name.upper() for name in cls._after_colon) if cls._after_colon else "")
        text += "".join(f"@{name.upper()}" for name in cls._after_at)
        optional = cls._after_colon and None not in cls.arguments.values()
        return f"{cls.name} or {text}" if optional else text


def _signature(norm_class: type[RegisteredNorm]) -> inspect.Signature:
    """Return the signature of a constructor, with the options of every norm in place of `**options`."""
    own = list(inspect.signature(norm_class.__init__).parameters.values())[1:]
    if own[-1].kind is not inspect.Parameter.VAR_KEYWORD:
        return inspect.Signature(own)
    shared = list(inspect.signature(RegisteredNorm.__init__).parameters.values())[2:]
    options = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in shared]
    return inspect.Signature([*own[:-1], *options])


class GroupedNorm(RegisteredNorm):
    """Base class of registered norms with groups of channels. For all other arguments, see `RegisteredNorm`.

    Args:
        num_groups: number of groups; None for the default of the norm.
    """

    def __init__(self, num_features: int, num_groups: int | None = None, **options: Unpack[RegisteredOptions]) -> None:
        if options.get("norm_spec") is None and num_groups is not None:
            _check_order(type(self), num_features, num_groups)
        self._initialize(num_features, {"num_groups": num_groups}, **options)


def _check_order(norm_class: type[RegisteredNorm], num_features: Any, num_groups: Any) -> None:
    """Raise an error with a hint if the arguments seem to be in the order of torch.nn.GroupNorm(num_groups, num_channels)."""
    if isinstance(num_features, int) and isinstance(num_groups, int) and num_groups > num_features:
        name = norm_class.__name__
        raise SpecError(
            f"num_groups of {norm_class.name} must be at most num_features, {num_features}; got {num_groups}. Unlike torch, "
            f"{name} takes (num_features, num_groups): write {name}({num_groups}, {num_features})."
        )


class ClassNorm(RegisteredNorm):
    """Base class of registered norms with an affine per class. For all other arguments, see `RegisteredNorm`.

    Args:
        num_classes: number of classes.
    """

    arguments = {"num_classes": None}

    def __init__(self, num_features: int, num_classes: int, **options: Unpack[RegisteredOptions]) -> None:
        self._initialize(num_features, {"num_classes": num_classes}, **options)


class DomainNorm(RegisteredNorm):
    """Base class of registered norms with statistics and an affine per domain. For all other arguments, see `RegisteredNorm`.

    Args:
        num_domains: number of domains.
    """

    arguments = {"num_domains": None}

    def __init__(self, num_features: int, num_domains: int, **options: Unpack[RegisteredOptions]) -> None:
        self._initialize(num_features, {"num_domains": num_domains}, **options)
