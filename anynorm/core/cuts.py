"""How finely each axis is divided before averaging.

x is (n samples, c channels, s positions). A cut gives the number of equal contiguous parts of each axis; `ALL` means that every
index is a part of its own. One mean and one variance belong to each (sample part, channel part, space part):

              samples  channels  space
    BN        1        ALL       1
    IN        ALL      ALL       1
    LN        ALL      1         1
    GN:g      ALL      g         1
    EN:g      1        g         1       (hn)
    PN        ALL      1         ALL
    GBGN:m,g  n/m      g         1       (m samples per part)
    BGN:G     1        the flattened (channels, space) in G parts jointly   (bgn, eqs. 8 and 9)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from anynorm.core.moments import Moments, pool
from anynorm.errors import ShapeError, SpecError

ALL = 0
"""As many parts as the axis is long; 0, so that `parts or length` is the number of parts."""


def divisors(number: int) -> list[int]:
    """Return the divisors of `number` in ascending order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [k for k in range(1, number + 1) if number % k == 0]


def format_numbers(numbers: list[int], limit: int = 12) -> str:
    """Return the numbers as text; of more than `limit`, the first ones and the last."""
    text = " ".join(map(str, numbers[:limit]))
    return text if len(numbers) <= limit else f"{text} … {numbers[-1]}"


@dataclass(frozen=True)
class Cut:
    """Equal parts of each axis.

    Args:
        samples: parts of the sample axis, 1 or `ALL`.
        channels: parts of the channel axis, a number or `ALL`.
        space: parts ("strips") of the flattened positions, a number or `ALL`.
        samples_per_part: with `samples=ALL`, how many consecutive samples form a part (GBGN).
        name: the name in specs and messages; ignored in comparisons.

    Attributes:
        pools_samples: whether a statistic is taken over several samples, so that inference needs running statistics.
        is_ghost: whether the batch is divided into parts of several samples ("ghost batches", GBGN).
    """

    samples: int
    channels: int
    space: int
    samples_per_part: int = 1
    name: str = field(default="", compare=False)
    pools_samples: bool = field(init=False, repr=False, compare=False)
    is_ghost: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.samples not in (1, ALL):
            raise SpecError(
                f"samples of a cut must be 1 or ALL; got {self.samples}. Use samples_per_part for parts of the batch."
            )
        if (
            self.channels < 0
            or self.space < 0
            or self.samples_per_part < 1
            or (self.samples_per_part > 1 and self.samples != ALL)
        ):
            raise SpecError(
                "A cut needs numbers of parts of at least 1 (or ALL), and samples=ALL for several samples per part; got "
                f"channels={self.channels}, space={self.space}, samples={self.samples}, samples_per_part={self.samples_per_part}."
            )
        object.__setattr__(self, "is_ghost", self.samples_per_part > 1)
        object.__setattr__(self, "pools_samples", self.samples != ALL or self.is_ghost)

    def __str__(self) -> str:
        return self.name or self.literal()

    def literal(self) -> str:
        """Return the cut as a spec that needs no name.

        >>> Cut(ALL, 32, 1).literal()
        '[*,32,1]'
        """
        symbol = {ALL: "*"}
        samples = f"/{self.samples_per_part}" if self.is_ghost else symbol.get(self.samples, str(self.samples))
        return f"[{samples},{symbol.get(self.channels, self.channels)},{symbol.get(self.space, self.space)}]"

    def resolve(self, num_features: int) -> Cut:
        """Return the cut for a number of channels.

        Raises:
            SpecError: if the channels cannot be divided into equal parts.
        """
        if self.channels != ALL and num_features % self.channels:
            raise SpecError(
                f"{self} cuts {num_features} channels into {self.channels} equal parts; {num_features} is not "
                f"divisible by {self.channels}. Usable: {format_numbers(divisors(num_features))}."
            )
        return self

    def parts(self, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the number of parts of each axis of an (n, c, s) shape."""
        n, c, s = shape
        samples = n // self.samples_per_part if self.samples == ALL else self.samples
        return samples, self.channels or c, self.space or s

    def pool_moments(self, rows: Moments) -> Moments:
        """Pool a table (n, c, strips) of moments into the parts of this cut."""
        n, c, t = rows.mean.shape
        return pool(rows, self.parts((n, c, t)))

    def pool_channels(self, columns: Moments) -> Moments:
        """Pool a table (domains or 1, c, strips), whose samples are pooled already, over channels and strips."""
        domains, c, t = columns.mean.shape
        return pool(columns, (domains, *self.parts((1, c, t))[1:]))

    def check_shape(self, shape: tuple[int, int, int], uses_batch: bool = True) -> None:
        """Check that the samples, if statistics come from the batch, and the positions of an (n, c, s) shape can be divided.

        Raises:
            ShapeError: if they cannot.
        """
        n, c, s = shape
        if uses_batch and self.is_ghost and n % self.samples_per_part:
            raise ShapeError(
                f"{self} takes statistics over {self.samples_per_part} samples each; the batch size must be a multiple of "
                f"{self.samples_per_part}; got {n}. Use such a batch size and drop_last=True, or en for the whole batch."
            )
        if self.space != ALL and s % self.space:
            nearest = min(divisors(s), key=lambda strips: (abs(strips - self.space), strips))
            usable = f"bgn:{nearest * c}" if self.samples == 1 and self.channels == ALL else f"{nearest} strips"
            raise ShapeError(
                f"{self} cuts the {s} positions of each of {c} channels into {self.space} equal strips; {s} is not divisible by "
                f"{self.space}. Nearest usable: {usable}."
            )


@dataclass(frozen=True)
class JointCut:
    """Equal parts of channels and space together, over all samples (bgn).

    It becomes a `Cut` when the number of channels is known: whole channels if `groups` divides that number, strips inside
    channels if that number divides `groups`.
    """

    groups: int
    name: str = field(default="", compare=False)
    pools_samples = True
    is_ghost = False

    def __str__(self) -> str:
        return self.name or self.literal()

    def literal(self) -> str:
        """Return the cut as a spec that needs no name."""
        return f"[1,{self.groups}]"

    def resolve(self, num_features: int) -> Cut:
        """Return the cut for a number of channels.

        Raises:
            SpecError: if groups would end inside a channel.
        """
        if num_features % self.groups == 0:
            return Cut(1, self.groups, 1, name=str(self))
        if self.groups % num_features == 0:
            return Cut(1, ALL, self.groups // num_features, name=str(self))
        below = largest_usable_groups(self.groups, num_features)
        above = min(g for g in [*divisors(num_features), num_features * (self.groups // num_features + 1)] if g > self.groups)
        raise SpecError(
            f"{self} cuts {num_features} channels × positions into {self.groups} groups; neither number divides the other, "
            f"so groups would end inside a channel. Nearest usable: {below} or {above}."
        )


AnyCut = Cut | JointCut


def largest_usable_groups(groups: int, num_features: int) -> int:
    """Return the largest usable number of BGN groups that is at most `groups`.

    >>> largest_usable_groups(128, 48), largest_usable_groups(64, 96)
    (96, 48)
    """
    if groups >= num_features:
        return groups // num_features * num_features
    return max(g for g in divisors(num_features) if g <= groups)
