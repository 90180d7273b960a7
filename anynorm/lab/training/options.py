"""The options of a task: a frozen dataclass whose fields have default, documentation, check and command-line flag in one place.

    @dataclass(frozen=True)
    class WaveOptions(Options):
        noise: float = option(0.3, "standard deviation of the noise.", minimum=0)
        channels: int = option(16, "channels of each layer.", minimum=1)

A task that is declared as `class Waves(Task[WaveOptions])` has these values in `self.options`; `--set noise=0.1` and
`--noise 0.1` change one on the command line. The options of a task that extends another extend its dataclass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from anynorm.errors import SpecError, did_you_mean
from anynorm.lab.training.value_types import convert_value, describe_type, field_types, plain_value

Self = TypeVar("Self", bound="Options")


def option(
    default: Any,
    help: str,  # noqa: A002 (the word of argparse, click and typer)
    *,
    choices: Sequence[Any] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    old_name: str | None = None,
) -> Any:
    """Return a field of an `Options` dataclass.

    Limits and choices of a tuple are those of each of its values.

    Args:
        default: the default value; it decides nothing about the type, which is the annotation of the field.
        help: what the option is, a phrase that ends in a full stop.
        choices: the values that the option may have; None for all.
        minimum: smallest value.
        maximum: largest value.
        above: a value that the option must exceed.
        below: a value that the option must not reach.
        old_name: the name of the option in stored runs of earlier versions.
    """
    limits = Limits(None if choices is None else tuple(choices), minimum, maximum, above, below)
    return dataclasses.field(default=default, metadata={"help": help, "limits": limits, "old_name": old_name})


@dataclass(frozen=True)
class Limits:
    """The values that an option may have."""

    choices: tuple[Any, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None

    def contain(self, value: Any) -> bool:
        """Whether a value, or every value of a tuple, is within the limits."""
        if isinstance(value, tuple):
            return all(self.contain(each) for each in value)
        if self.choices is not None and value not in self.choices:
            return False
        return not (
            (self.minimum is not None and not value >= self.minimum)
            or (self.maximum is not None and not value <= self.maximum)
            or (self.above is not None and not value > self.above)
            or (self.below is not None and not value < self.below)
        )

    def __str__(self) -> str:
        if self.choices is not None:
            return f"one of {' '.join(map(str, self.choices))}"
        low, high = (self.minimum if self.above is None else self.above), (self.maximum if self.below is None else self.below)
        if low is not None and high is not None:
            return f"in {'[' if self.above is None else '('}{low:g}, {high:g}{']' if self.below is None else ')'}"
        if low == 0 and self.above is None:
            return "0 or more"
        if low is not None:
            return f"at least {low:g}" if self.above is None else f"greater than {low:g}"
        return f"at most {high:g}" if self.below is None else f"less than {high:g}"


@dataclass(frozen=True)
class Options:
    """The options of a task, and base class of the options of all tasks.

    Raises:
        SpecError: if a value is of another type than its field, or outside its limits.
    """

    def __post_init__(self) -> None:
        kinds = field_types(type(self))
        for field in dataclasses.fields(self):
            value, kind = getattr(self, field.name), kinds[field.name]
            if value is None and field.default is None:
                continue
            try:
                value = convert_value(kind, value)
            except ValueError:
                raise SpecError(f"{field.name} must be {describe_type(kind)}; got {value!r}.") from None
            limits = field.metadata.get("limits", Limits())
            if not limits.contain(value):
                raise SpecError(f"{field.name} must be {limits}; got {value!r}.")
            object.__setattr__(self, field.name, value)
        self.check()

    def check(self) -> None:
        """Check values that depend on each other; override it.

        Raises:
            SpecError: if values do not fit together.
        """

    def changed(self) -> dict[str, Any]:
        """Return the values that differ from the defaults as plain values of JSON, as a stored run has them."""
        return {
            field.name: plain_value(value)
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }

    @classmethod
    def from_values(cls: type[Self], values: Mapping[str, Any], owner: str = "") -> Self:
        """Return the options with the given values, which may be texts; all others have their defaults.

        Args:
            values: values by name, such as `Config.options`.
            owner: name of the task, for error messages.

        Raises:
            SpecError: if there is no such option, or a value is not valid.
        """
        renamed = {field.metadata.get("old_name"): field.name for field in dataclasses.fields(cls)}
        names = [field.name for field in dataclasses.fields(cls)]
        current = {renamed.get(name, name) if name not in names else name: value for name, value in values.items()}
        for name in current:
            if name not in names:
                known = f"its options are {' '.join(names)}" if names else "it has no options"
                raise SpecError(f"{owner or cls.__name__} has no option {name!r}; {known}.{did_you_mean(name, names, count=1)}")
        return cls(**current)

    @classmethod
    def descriptions(cls) -> dict[str, str]:
        """Return the documentation of each option by name."""
        return {field.name: field.metadata.get("help", "") for field in dataclasses.fields(cls)}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the default value of each option by name."""
        return {field.name: field.default for field in dataclasses.fields(cls)}
