"""Claims of a paper, or of ours, about the quantities of a record.

    Larger        one quantity is larger than another
    Equivalent    two quantities differ by less than δ ("nearly the same", "no remarkable difference")
    Check         one quantity is larger than another by a theorem: a test of the code, not evidence

`verdicts.judge` tests them. Claims about the same networks on both sides (two attacks, two columns of one search, each layer)
have the same `group`: they are tested together and counted once. Comparisons of one network with several others are several
claims.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from anynorm.errors import DataError
from anynorm.lab.recipes.support.quantities import Constant, Quantity, accuracy_of

PAPERS = ("sn", "sabn", "bgn", "xbn", "hn")


class Source(NamedTuple):
    """Where a claim is made.

    Attributes:
        paper: the key of the paper; "" for a claim of ours.
        place: table, figure or section, such as "Table 2", "Fig. 3b" or "sec. 4.1", as the inventory of the paper names it.
        quote: the paper's words, or further numbers, if the two published numbers do not say it all.
    """

    paper: str
    place: str = ""
    quote: str = ""

    def __str__(self) -> str:
        return f"{self.paper} {self.place}" if self.paper else "ours"


OURS = Source("")
"""The source of a claim that no paper makes."""


class Published(NamedTuple):
    """The paper's two numbers, in the unit of our quantities, in the order of the claim."""

    first: float
    second: float

    def __str__(self) -> str:
        return f"{self.first:g} and {self.second:g}"


class Scale(NamedTuple):
    """How two quantities are compared.

    Attributes:
        unit: the unit of a difference.
        transform: a function applied to both quantities before they are subtracted.
        derivative: the derivative of the transform.
        inverse: a function that turns a difference into what is printed.
        default_delta: smallest δ of an equivalence, in units of transformed values; None if δ must be given.
    """

    unit: str
    transform: Callable[[float], float]
    derivative: Callable[[float], float]
    inverse: Callable[[float], float]
    default_delta: float | None


def _one(_: float) -> float:
    return 1.0


def _reciprocal(value: float) -> float:
    return 1 / value


POINTS = Scale("points", float, _one, float, 0.5)
"""Differences of percentages. A quarter of the paper's difference, and at least half a point, is called equal."""
UNITS = Scale("", float, _one, float, None)
"""Differences of other numbers."""
RATIO = Scale("ratio", math.log, _reciprocal, math.exp, math.log(1.05))
"""Ratios of positive numbers, compared as differences of logarithms."""


class Level(Enum):
    """What a claim speaks about: whole networks, or each stage or layer of them."""

    RUN = "run"
    STAGE = "stage"
    LAYER = "layer"


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """What claims about two quantities have in common.

    Args:
        statement: the claim as a sentence.
        source: where it is made.
        published: the paper's numbers; None if it has none of this metric.
        scale: whether differences or ratios are compared.
        level: what the claim speaks about. Claims about stages and layers need a group.
        group: name of the claims that are counted as one; "" if the claim is counted by itself.
        requires: names of the `Requirement`s without which the claim is not tested.
        loser_may_fail: whether the paper claims that the smaller side does not learn. Otherwise both sides must have learned.

    Raises:
        DataError: if a claim about stages or layers has no group.
    """

    statement: str
    source: Source
    published: Published | None = None
    scale: Scale = POINTS
    level: Level = Level.RUN
    group: str = ""
    requires: tuple[str, ...] = ()
    loser_may_fail: bool = False

    def __post_init__(self) -> None:
        if self.scale is RATIO and self.published is not None and min(self.published) <= 0:
            raise DataError(f"the published numbers of a ratio must be above 0; got {self.published} for {self.statement!r}.")
        if self.level is not Level.RUN and not self.group:
            raise DataError(
                f"a claim about each {self.level.value} must have a group, because all {self.level.value}s are those of the same "
                f"networks; got none for the claim {self.statement!r}."
            )

    @property
    def margin(self) -> float | None:
        """The paper's difference, on the scale of the claim; None if the paper has no numbers."""
        if self.published is None:
            return None
        return self.scale.transform(self.published.first) - self.scale.transform(self.published.second)


@dataclass(frozen=True, kw_only=True)
class Larger(_Comparison):
    """The claim that one quantity is larger than another.

    Args:
        larger: the quantity that is larger, according to the claim.
        smaller: the other quantity.
        delta: differences smaller than this, in units of the scale (a ratio: 1.1 for ± 10 %), are called equal. By default, a
            quarter of the paper's difference, and at least half a point or 5 %.

    Raises:
        DataError: if δ is not positive, or not smaller than the paper's difference.
    """

    larger: Quantity
    smaller: Quantity
    delta: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_delta(self)
        if self.delta is not None and self.margin is not None and self.scale.transform(self.delta) >= self.margin:
            raise DataError(
                f"delta must be smaller than the paper's difference of {self.scale.inverse(self.margin):.4g}; "
                f"got {self.delta} for the claim {self.statement!r}."
            )

    @property
    def sides(self) -> tuple[Quantity, Quantity]:
        """The larger and the smaller quantity."""
        return self.larger, self.smaller

    @property
    def transformed_delta(self) -> float | None:
        """δ on the scale of the claim; None if equality cannot be concluded."""
        if self.delta is not None:
            return self.scale.transform(self.delta)
        quarter = None if self.margin is None else self.margin / 4
        return max((value for value in (quarter, self.scale.default_delta) if value is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class Equivalent(_Comparison):
    """The claim that two quantities differ by less than δ.

    Args:
        first: a quantity.
        second: the other quantity.
        delta: the largest difference that is called equal, in units of the scale (a ratio: 1.2 for ± 20 %).

    Raises:
        DataError: if δ is not positive.
    """

    first: Quantity
    second: Quantity
    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_delta(self)

    @property
    def sides(self) -> tuple[Quantity, Quantity]:
        """Both quantities."""
        return self.first, self.second

    @property
    def transformed_delta(self) -> float:
        """δ on the scale of the claim."""
        return self.scale.transform(self.delta)


@dataclass(frozen=True, kw_only=True)
class Check:
    """A statement that is true by a theorem: if it is violated, the code is wrong.

    Args:
        statement: the statement.
        reason: why it is true.
        larger: the quantity that is at least as large.
        smaller: the other quantity.
    """

    statement: str
    reason: str
    larger: Quantity
    smaller: Quantity
    source: ClassVar[Source] = OURS


Claim = Larger | Equivalent


def more_accurate(norm: str, other: str, source: Source, published: Published | None = None, **cell: Any) -> Larger:
    """Return the claim that a norm is more accurate than another norm with the same `cell`, such as `batch_size=2`."""
    conditions = ", ".join(f"{key.replace('batch_size', 'batch')} {value}" for key, value in cell.items())
    statement = f"`{norm}` is more accurate than `{other}`" + (f" ({conditions})" if conditions else "")
    sides = accuracy_of(norm=norm, **cell), accuracy_of(norm=other, **cell)
    return Larger(statement=statement, source=source, published=published, larger=sides[0], smaller=sides[1])


def above(value: float, quantity: Quantity, statement: str, source: Source) -> Larger:
    """Return the claim that a quantity is larger than a number."""
    return Larger(statement=statement, source=source, larger=quantity, smaller=Constant(value))


def _check_delta(claim: Larger | Equivalent) -> None:
    """Raise an error if δ is not positive on the scale of a claim."""
    delta = claim.delta
    if delta is None:
        return
    valid = math.isfinite(delta) and delta > 0 and claim.scale.transform(delta) > 0
    if not valid:
        wanted = "greater than 1" if claim.scale is RATIO else "greater than 0"
        raise DataError(f"delta must be {wanted}; got {delta} for the claim {claim.statement!r}.")
