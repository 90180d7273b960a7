"""Cuts: the sets of values over which means and variances are computed.

x has the shape (n samples, c channels, s positions). A cut divides each axis into a number of equal contiguous parts; `ALL` means
one part per index. There is one mean and one variance per (sample part, channel part, space part):

              samples  channels  space
    BN        1        ALL       1
    IN        ALL      ALL       1
    LN        ALL      1         1
    GN:g      ALL      g         1
    EN:g      1        g         1       (hn)
    PN        ALL      1         ALL
    GBGN:m,g  n/m      g         1       (m samples per part)
    BGN:G     1        the flattened (channels, space) in G parts jointly   (bgn, eqs. 8 and 9)

Channels and positions can be divided jointly into G parts if G divides c·s, that is, if k = G/g divides s, where g = gcd(G, c):
each of g channel parts, flattened, is divided into k parts of c/g strips of s/k positions. Each part is a set of whole channels
if k = 1 and a strip of one channel if g = c; otherwise, parts may contain fractions of several channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from torch import Tensor

from anynorm.core.moments import Moments, about_zero, expand_parts, pool
from anynorm.errors import ShapeError, SpecError

ALL = 0
"""One part per index of the axis. It is 0, so that `parts or length` is the number of parts."""


def divisors(number: int) -> list[int]:
    """Return the divisors of `number` in ascending order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [k for k in range(1, number + 1) if number % k == 0]


def nearest_divisor(groups: int, number: int) -> int:
    """Return the divisor of `number` that is nearest to `groups`; the smaller of two that are equally near.

    >>> nearest_divisor(32, 48), nearest_divisor(3, 4)
    (24, 2)
    """
    return min(divisors(number), key=lambda divisor: (abs(divisor - groups), divisor))


def format_numbers(numbers: list[int], limit: int = 12) -> str:
    """Format a list of numbers; of more than `limit` numbers, only the first ones and the last."""
    text = " ".join(map(str, numbers[:limit]))
    return text if len(numbers) <= limit else f"{text} … {numbers[-1]}"


@dataclass(frozen=True)
class Cut:
    """A division of each axis into equal parts.

    Args:
        samples: number of parts of the sample axis, 1 or `ALL`.
        channels: number of parts of the channel axis, or `ALL`.
        space: number of parts ("strips") of the flattened positions, or `ALL`.
        samples_per_part: number of consecutive samples per part, with `samples=ALL` (GBGN).
        crosses_channels: whether `space` divides the flattened channels and positions of each channel part, instead of the
            positions only, so that parts may contain fractions of several channels.
        about_zero: whether the moments are about zero: mean 0 and var E[x²]. Only for a norm of which other cuts have a mean, as
            while rms becomes pn; a norm whose mean is 0 has no cuts of the mean instead.
        name: the name in specs and messages; ignored in comparisons.
        is_micro_batch: whether each part of the samples is a micro-batch of gradient accumulation, which updates running
            statistics by itself; see `in_micro_batches`.

    Attributes:
        pools_samples: whether statistics are computed over several samples, so that inference needs running statistics.
        is_ghost: whether the batch is divided into parts of several samples ("ghost batches", GBGN), or into micro-batches.
    """

    samples: int
    channels: int
    space: int
    samples_per_part: int = 1
    crosses_channels: bool = False
    about_zero: bool = False
    name: str = field(default="", compare=False)
    is_micro_batch: bool = field(default=False, repr=False)
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
        object.__setattr__(self, "is_ghost", self.samples_per_part > 1 or self.is_micro_batch)
        object.__setattr__(self, "pools_samples", self.samples != ALL or self.is_ghost)

    def __str__(self) -> str:
        return self.name or self.literal()

    def literal(self) -> str:
        """Return the cut in the bracket notation of specs.

        >>> Cut(ALL, 32, 1).literal()
        '[*,32,1]'
        """
        symbol = {ALL: "*"}
        samples = f"/{self.samples_per_part}" if self.is_ghost else symbol.get(self.samples, str(self.samples))
        if self.crosses_channels:
            return f"[{samples},{self.channels * self.space}]"
        return f"[{samples},{symbol.get(self.channels, self.channels)},{symbol.get(self.space, self.space)}]"

    def resolve(self, num_features: int) -> Cut:
        """Return the cut for a given number of channels.

        Raises:
            SpecError: if the number of channels is not divisible by the number of parts.
        """
        if self.channels != ALL and num_features % self.channels:
            raise SpecError(
                f"{self} cuts {num_features} channels into {self.channels} equal parts; {num_features} is not "
                f"divisible by {self.channels}. Usable: {format_numbers(divisors(num_features))}."
            )
        return self

    def nearest(self, num_features: int) -> Cut:
        """Return the cut with the nearest number of channel parts that divides a number of channels.

        >>> Cut(1, 32, 1).nearest(48)
        Cut(samples=1, channels=24, space=1, samples_per_part=1, crosses_channels=False, about_zero=False, name='en:24')
        """
        if self.channels == ALL or num_features % self.channels == 0:
            return self
        channels = nearest_divisor(self.channels, num_features)
        name = f"{'gn' if self.samples == ALL else 'en'}:{channels}"
        if self.is_ghost:
            name = f"gbgn:{self.samples_per_part},{channels}"
        return replace(self, channels=channels, name=name if self.space == 1 else "")

    def in_micro_batches(self, size: int) -> Cut:
        """Return this cut of each micro-batch of `size` samples; a cut that does not pool samples is not changed.

        >>> Cut(1, ALL, 1, name="bn").in_micro_batches(2).literal()
        '[/2,*,1]'
        """
        return self if self.samples == ALL else replace(self, samples=ALL, samples_per_part=size, is_micro_batch=True)

    def parts(self, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the number of parts of each axis for a shape (n, c, s)."""
        n, c, s = shape
        samples = n // self.samples_per_part if self.samples == ALL else self.samples
        return samples, self.channels or c, self.space or s

    def part_of(self, index: tuple[int, ...], shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the index of the part that has the value at index (sample, channel, position) of an input of shape (n, c, s)."""
        sizes, parts = shape, self.parts(shape)
        if self.crosses_channels:
            n, c, s = index
            unit_channels = shape[1] // self.channels
            index = (n, c // unit_channels, c % unit_channels * shape[2] + s)
            sizes = (shape[0], self.channels, unit_channels * shape[2])
        samples, channels, space = (i * count // size for i, count, size in zip(index, parts, sizes, strict=True))
        return samples, channels, space

    def pool_moments(self, rows: Moments) -> Moments:
        """Pool the moments (n, c, strips) of samples, channels and strips into the parts of this cut."""
        n, c, t = rows.mean.shape
        return self._centered(pool(self._as_units(rows), self.parts((n, c, t))))

    def pool_channels(self, columns: Moments) -> Moments:
        """Pool moments (domains or 1, c, strips) that were already pooled over samples into the parts of channels and space."""
        domains, c, t = columns.mean.shape
        return self._centered(pool(self._as_units(columns), (domains, *self.parts((1, c, t))[1:])))

    def _centered(self, moments: Moments) -> Moments:
        return about_zero(moments) if self.about_zero else moments

    def _as_units(self, moments: Moments) -> Moments:
        """Reshape moments (n, c, strips) so that each part of this cut is contiguous along the last axis."""
        if not self.crosses_channels:
            return moments
        shape = (moments.mean.shape[0], self.channels, -1)
        return Moments(*(table.expand_as(moments.mean).reshape(shape) for table in moments))

    def expand(self, table: Tensor, shape: tuple[int, int, int]) -> Tensor:
        """Expand a table with one entry per part to (n, c, strips); axes with one part may keep size 1 and broadcast."""
        if not self.crosses_channels:
            return expand_parts(table, shape)
        _, c, t = shape
        return expand_parts(table, (shape[0], self.channels, c // self.channels * t)).reshape(-1, c, t)

    def check_shape(self, shape: tuple[int, int, int], uses_batch: bool = True) -> None:
        """Check that the samples and positions of a shape (n, c, s) can be divided into equal parts.

        Args:
            shape: the shape.
            uses_batch: whether the statistics are computed from the batch; if not, the samples are not checked.

        Raises:
            ShapeError: if they cannot.
        """
        n, c, s = shape
        if uses_batch and self.is_ghost and n % self.samples_per_part:
            raise ShapeError(
                f"{self} takes statistics over {self.samples_per_part} samples each; the batch size must be a multiple of "
                f"{self.samples_per_part}; got {n}. Use such a batch size and drop_last=True, or en for the whole batch."
            )
        if self.crosses_channels and s % self.space:
            groups = self.channels * self.space
            nearest = min(divisors(c * s), key=lambda usable: (abs(usable - groups), usable))
            raise ShapeError(
                f"{self} cuts {c} channels × {s} positions = {c * s} values into {groups} equal groups; {c * s} is not divisible "
                f"by {groups}. Nearest usable: {nearest}."
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
    """A division of the flattened channels and positions into equal parts (bgn). `resolve` converts it to a `Cut`.

    Args:
        groups: number of parts.
        samples: number of parts of the sample axis, 1 or `ALL`.
        name: the name in specs and messages; ignored in comparisons.
    """

    groups: int
    samples: int = 1
    name: str = field(default="", compare=False)
    is_ghost = False

    @property
    def pools_samples(self) -> bool:
        """Whether statistics are computed over several samples."""
        return self.samples != ALL

    def __str__(self) -> str:
        return self.name or self.literal()

    def literal(self) -> str:
        """Return the cut in the bracket notation of specs."""
        return f"[{'1' if self.pools_samples else '*'},{self.groups}]"

    def resolve(self, num_features: int) -> Cut:
        """Return the cut for a given number of channels; `Cut.check_shape` checks the number of positions of each input."""
        units = math.gcd(self.groups, num_features)
        strips = self.groups // units
        if strips == 1:
            return Cut(self.samples, units, 1, name=str(self))
        if units == num_features:
            return Cut(self.samples, ALL, strips, name=str(self))
        return Cut(self.samples, units, strips, crosses_channels=True, name=str(self))

    def nearest(self, num_features: int) -> JointCut:
        """Return the cut with the largest usable number of groups up to its own; see `largest_usable_groups`.

        A cut in brackets, without a name, is returned as it is: its groups may end inside channels.

        >>> print(JointCut(256, name="bgn:256").nearest(36), JointCut(256).nearest(36))
        bgn:252 [1,256]
        """
        groups = largest_usable_groups(self.groups, num_features)
        if groups == self.groups or not self.name:
            return self
        return JointCut(groups, self.samples, name=f"bgn:{groups}")


AnyCut = Cut | JointCut


def largest_usable_groups(groups: int, num_features: int) -> int:
    """Return the largest number of BGN groups, at most `groups`, for which a group is a set of whole channels or a part of one.

    >>> largest_usable_groups(128, 48), largest_usable_groups(64, 96)
    (96, 48)
    """
    if groups >= num_features:
        return groups // num_features * num_features
    return max(g for g in divisors(num_features) if g <= groups)
