"""Learning rate schedules: the factor of the learning rate as a function of the finished fraction p of the training.

    Constant       1                                                constant
    Step           the factor of the last milestone ≤ p             step:0.5,0.75      step:1/3=0.06,2/3=0.012
    Cosine         final + (1 − final) (1 + cos πp) / 2             cosine             cosine:0.04
    Exponential    final^p                                          exponential        exponential:0.001
    Polynomial     (1 − p)^power                                    poly               poly:2
    Inverse        1 / (1 + rate p)                                 inverse            inverse:4

The right column is the text of a schedule, which the command line takes and a stored run has. Warm-up multiplies the schedule.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from anynorm.errors import SpecError
from anynorm.lab.training.value_types import parse_value

OLD_NAMES = {
    "step": "step:0.5,0.75",
    "step-quarters": "step:0.25,0.5,0.75",
    "step-25-75": "step:0.25,0.75",
    "step-38-75": "step:0.375,0.75",
    "step-67-89": "step:2/3,8/9",
    "step-30-60-90": "step:0.3,0.6,0.9",
    "step-thirds": "step:1/3=0.06,2/3=0.012,5/6=0.0024",
    "cosine-to-0.04": "cosine:0.04",
}
"""Texts of the schedules that runs of earlier versions have by name."""


class Schedule(ABC):
    """A learning rate schedule; `str(schedule)` is its text."""

    @abstractmethod
    def factor(self, progress: float) -> float:
        """Return the factor of the learning rate at a finished fraction of the training, from 0 to 1."""


@dataclass(frozen=True)
class Constant(Schedule):
    """No change of the learning rate."""

    def factor(self, progress: float) -> float:  # noqa: D102
        return 1.0

    def __str__(self) -> str:
        return "constant"


@dataclass(frozen=True)
class Step(Schedule):
    """A learning rate that changes at milestones.

    Args:
        milestones: finished fractions of the training, increasing.
        factors: factor of the learning rate from each milestone on; by default a tenth, a hundredth, and so on.
    """

    milestones: tuple[float, ...] = (0.5, 0.75)
    factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.factors:
            object.__setattr__(self, "factors", tuple(0.1**count for count in range(1, len(self.milestones) + 1)))
        increasing = all(low < high for low, high in zip((0.0, *self.milestones), (*self.milestones, 1.0), strict=True))
        if not self.milestones or not increasing or len(self.factors) != len(self.milestones):
            raise SpecError(f"milestones must be increasing numbers in (0, 1), each with a factor; got {self.milestones}.")

    def factor(self, progress: float) -> float:  # noqa: D102
        return (1.0, *self.factors)[sum(progress >= milestone for milestone in self.milestones)]

    def __str__(self) -> str:
        if self == Step(self.milestones):
            return "step:" + ",".join(map(_text, self.milestones))
        pairs = zip(self.milestones, self.factors, strict=True)
        return "step:" + ",".join(f"{_text(milestone)}={_text(factor)}" for milestone, factor in pairs)


@dataclass(frozen=True)
class Cosine(Schedule):
    """A learning rate that falls to a fraction of itself along a cosine (Loshchilov & Hutter 2017)."""

    final: float = 0.0

    def factor(self, progress: float) -> float:  # noqa: D102
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2

    def __str__(self) -> str:
        return f"cosine:{_text(self.final)}" if self.final else "cosine"


@dataclass(frozen=True)
class Exponential(Schedule):
    """A learning rate that falls exponentially to a fraction of itself; 0.1 after half of the training if that is 0.01."""

    final: float = 0.01

    def factor(self, progress: float) -> float:  # noqa: D102
        return float(self.final**progress)

    def __str__(self) -> str:
        return "exponential" if self == Exponential() else f"exponential:{_text(self.final)}"


@dataclass(frozen=True)
class Polynomial(Schedule):
    """A learning rate that falls to 0 as a power of the remaining fraction, as in segmentation."""

    power: float = 0.9

    def factor(self, progress: float) -> float:  # noqa: D102
        return float((1 - progress) ** self.power)

    def __str__(self) -> str:
        return "poly" if self == Polynomial() else f"poly:{_text(self.power)}"


@dataclass(frozen=True)
class Inverse(Schedule):
    """A learning rate that falls as 1 / (1 + rate p): AdaIN's 1 / (1 + 5e-5 step) over its 160 000 steps if the rate is 8."""

    rate: float = 8.0

    def factor(self, progress: float) -> float:  # noqa: D102
        return 1 / (1 + self.rate * progress)

    def __str__(self) -> str:
        return "inverse" if self == Inverse() else f"inverse:{_text(self.rate)}"


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "step": Step,
    "cosine": Cosine,
    "exponential": Exponential,
    "poly": Polynomial,
    "inverse": Inverse,
}


def warmup_factor(epoch: float, warmup_epochs: float) -> float:
    """Return the factor of the learning rate after a number of epochs, which grows linearly from 0 to 1 over `warmup_epochs`.

    >>> warmup_factor(1, 0), round(warmup_factor(1, 2), 2), warmup_factor(3, 2)
    (1.0, 0.5, 1.0)
    """
    if not warmup_epochs:
        return 1.0
    return min(1.0, (epoch + 1e-3) / warmup_epochs)  # 1e-3: the learning rate of the first step is not 0


@lru_cache(maxsize=64)
def parse_schedule(text: str) -> Schedule:
    """Return the schedule of a text.

    Raises:
        SpecError: if the text is not that of a schedule.

    >>> parse_schedule("step:2/3,8/9").factor(0.7), str(parse_schedule("step-67-89"))
    (0.1, 'step:2/3,8/9')
    """
    name, colon, numbers = OLD_NAMES.get(text, text).partition(":")
    try:
        kind: Any = SCHEDULES[name]
        if kind is Step:
            pairs = [part.partition("=") for part in numbers.split(",")]
            milestones = tuple(parse_value(float, milestone) for milestone, _, _ in pairs)
            return Step(milestones, tuple(parse_value(float, factor) for _, equals, factor in pairs if equals))
        schedule: Schedule = kind(parse_value(float, numbers)) if colon else kind()
        return schedule
    except (KeyError, ValueError, TypeError):
        raise SpecError(
            f"schedule must be one of {' '.join(SCHEDULES)}, with its numbers as in step:0.5,0.75 or cosine:0.04; got {text!r}."
        ) from None


def _text(value: float) -> str:
    """Return a number as text, as a fraction if that is shorter.

    >>> _text(2 / 3), _text(0.375), _text(8.0)
    ('2/3', '0.375', '8')
    """
    if float(short := f"{value:g}") == value:
        return short
    fraction = Fraction(value).limit_denominator(1000)
    return str(fraction) if float(fraction) == value else repr(value)
