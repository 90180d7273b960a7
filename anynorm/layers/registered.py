"""What a row of the zoo is: a class with a name, the numbers its spec takes, and the spec it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from anynorm.core import grammar as specs
from anynorm.core.spec import CustomSpec, NormSpec, check_num_features
from anynorm.errors import SpecError
from anynorm.layers.norm import Norm
from anynorm.layers.state import CustomNorm

REGISTRY: dict[str, type[RegisteredNorm]] = {}
_PER_CONDITION = ("num_classes", "num_domains")


def parse_with_options(spec: str, num_features: int, affine: bool, options: Mapping[str, Any]) -> NormSpec:
    """Parse a spec with the options that complete it, refusing those that do not belong to it."""
    parts = specs.parse(spec, num_features=check_num_features(num_features, spec), **options)
    settings = REGISTRY[parts.custom.name].settings if parts.custom else {}
    if parts.custom:
        REGISTRY[parts.custom.name].check(num_features)
    usable = specs.arguments(spec) | {"batch_size", *settings}
    for option in options:
        if option not in usable:
            raise SpecError(
                f"{spec} takes no option {option!r}. It takes {' '.join(sorted(usable))} and torch's own (eps, momentum, …)."
            )
    return parts if affine else parts.without_affine()


class RegisteredNorm(Norm):
    """A norm of the zoo, with torch's argument names; the numbers of its spec are keywords.

    Attributes:
        arguments: the numbers of the spec and their defaults; None: it must be given. Classes and domains follow @.
        stands_for: the spec it is short for.
        example: a spec to show it by, where the bare name does not do.
        variants: other specs of the same paper, with what they are.
        settings: numbers that a spec does not write, with their defaults; a layer keeps them as buffers.
        sets_of: the argument that counts the sets of statistics, where no condition chooses among them.
        formula: what is computed, where the parts do not say.
        missing: why there is no such layer, of a row that says only this.
    """

    name: ClassVar[str]
    arguments: ClassVar[dict[str, int | None]] = {}
    alias_of: ClassVar[str]
    paper: ClassVar[str]
    example: ClassVar[str] = ""
    variants: ClassVar[dict[str, str]] = {}
    settings: ClassVar[dict[str, float]] = {}
    stat_sets_arg: ClassVar[str] = ""
    formula: ClassVar[tuple[str, ...]] = ()
    missing: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in vars(cls):
            if REGISTRY.setdefault(cls.name, cls).__qualname__ != cls.__qualname__:
                raise SpecError(
                    f"{cls.__name__} cannot be called {cls.name!r}: {REGISTRY[cls.name].__name__} is. Take another name."
                )
            REGISTRY[cls.name] = cls

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        update_rule = options.pop("update_rule", None)
        settings = {name: options[name] for name in self.settings if name in options}
        parts = parse_with_options(self.name, num_features, affine, options)
        super().__init__(
            parts,
            num_features,
            eps=eps,
            momentum=momentum,
            track_running_stats=track_running_stats,
            update_rule=update_rule,
            device=device,
            dtype=dtype,
        )
        self.set(settings)

    def extra_repr(self) -> str:
        """Show spec, channels, options and settings."""
        return ", ".join([super().extra_repr(), *(f"{name}={float(self.get_buffer(name)):g}" for name in self.settings)])

    def set(self, settings: Mapping[str, Any]) -> None:
        """Set the numbers that a spec does not write."""
        for name, value in settings.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise SpecError(f"{self.name} got {name}={value!r}; it takes a number from 0.")
            self.get_buffer(name).fill_(value)

    @classmethod
    def expand(cls, numbers: list[int], classes: int | None, options: Mapping[str, Any]) -> tuple[str, str, CustomSpec | None]:
        """Give the name with its numbers, the spec it stands for, and what that leaves out; options fill what the name does."""
        if cls.missing:
            raise SpecError(f"{cls.name} is not implemented: {cls.missing}")
        plain = [argument for argument in cls.arguments if argument not in _PER_CONDITION]
        per_condition = [argument for argument in cls.arguments if argument in _PER_CONDITION]
        if len(numbers) > len(plain) or (classes is not None and not per_condition):
            given = ",".join(map(str, numbers)) + (f"@{classes}" if classes is not None else "")
            raise SpecError(f"{cls.name} does not take {given}; it is written {cls.signature()}.")
        written = dict(zip(plain, numbers, strict=False)) | ({per_condition[0]: classes} if classes is not None else {})
        values = {argument: cls._value(argument, written.get(argument), options) for argument in cls.arguments}
        track = [values[argument] for argument in plain]
        text = cls.name
        defaults = [cls.arguments[argument] for argument in plain]
        if track and not track == defaults == [1]:  # a single part goes without saying, where it is the default
            text += ":" + ",".join(map(str, track))
        text += "".join(f"@{values[argument]}" for argument in per_condition)
        foreign = CustomSpec(cls.name, text, values.get(cls.stat_sets_arg, 0)) if issubclass(cls, CustomNorm) else None
        return text, cls.alias_of.format(**values), foreign

    @classmethod
    def _value(cls, argument: str, written: int | None, options: Mapping[str, Any]) -> int:
        option = options.get(argument)
        if written is not None and option not in (None, written):
            raise SpecError(f"{cls.name} was given {argument} twice: {written} in the spec, {option} as an option.")
        value = option if written is None else written
        value = cls.rule(argument, options) if value is None else value
        if not isinstance(value, int) or value < 1:
            raise SpecError(f"{cls.name} got {argument}={value!r}; it takes a whole number from 1.")
        return value

    @classmethod
    def rule(cls, argument: str, options: Mapping[str, Any]) -> int:
        """Give the number where none is written."""
        default = cls.arguments[argument]
        if default is None:
            raise SpecError(f"{cls.name} needs {argument}: write {cls.signature()}, or give {argument}=….")
        return default

    @classmethod
    def check(cls, num_features: int) -> None:
        """Refuse a channel count that a norm beyond the algebra has no meaning for."""

    @classmethod
    def signature(cls) -> str:
        """Show how the name is written with its numbers.

        >>> from anynorm.registry import HeteroNorm, SandwichBatchNorm
        >>> HeteroNorm.signature(), SandwichBatchNorm.signature()
        ('hn or hn:NUM_GROUPS', 'sabn@NUM_CLASSES')
        """
        plain = ",".join(argument.upper() for argument in cls.arguments if argument not in _PER_CONDITION)
        text = cls.name + (f":{plain}" if plain else "")
        text += "".join(f"@{argument.upper()}" for argument in cls.arguments if argument in _PER_CONDITION)
        optional = plain and None not in cls.arguments.values()
        return f"{cls.name} or {text}" if optional else text
