"""How finely the three axes are divided before averaging.

x is (n samples, c channels, s positions). A cut gives, for each axis, the number of equal contiguous parts; ALL leaves
every index on its own. One statistic belongs to each (sample part, channel part, space part):

              samples  channels  space
    BN        1        ALL       1
    IN        ALL      ALL       1
    LN        ALL      1         1
    GN:g      ALL      g         1
    EN:g      1        g         1       (hn)
    PN        ALL      1         ALL
    GBGN:m,g  n/m      g         1       (m samples a part)
    BGN:G     1        the flattened (channels, space) in G parts jointly   (bgn, eqs. 8 and 9)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from anynorm.core.moments import Moments, pool
from anynorm.errors import SpecError

ALL = 0
"""As many parts as the axis is long."""


def divisors(number: int) -> list[int]:
    """List the divisors of `number`, smallest first.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [k for k in range(1, number + 1) if number % k == 0]


def format_numbers(numbers: list[int], most: int = 12) -> str:
    """Write numbers out, leaving out the middle of many."""
    track = " ".join(map(str, numbers[:most]))
    return track if len(numbers) <= most else f"{track} … {numbers[-1]}"


@dataclass(frozen=True)
class Cut:
    """Divides each axis into equal parts.

    Args:
        samples_per_part: with `samples=ALL`, how many samples share a part; 1 is each on its own.
        name: what the zoo calls this cut; it takes no part in equality.
    """

    samples: int
    channels: int
    space: int
    samples_per_part: int = 1
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.name or self.literal()

    def literal(self) -> str:
        """Write the cut itself, a spec that needs no name.

        >>> Cut(ALL, 32, 1).literal()
        '[*,32,1]'
        """
        sign = {ALL: "*"}
        samples = f"/{self.samples_per_part}" if self.is_ghost else sign.get(self.samples, str(self.samples))
        return f"[{samples},{sign.get(self.channels, self.channels)},{sign.get(self.space, self.space)}]"

    @property
    def pools_samples(self) -> bool:
        """Whether a statistic mixes samples, so that inference needs a population."""
        return self.samples != ALL or self.is_ghost

    @property
    def is_ghost(self) -> bool:
        """Whether parts of several samples divide the batch (GBGN)."""
        return self.samples_per_part > 1

    def fit(self, num_features: int) -> Cut:
        """Check the cut against a channel count."""
        if self.channels != ALL and num_features % self.channels:
            raise SpecError(
                f"{self} cuts {num_features} channels into {self.channels} equal parts; {num_features} is not "
                f"divisible by {self.channels}. Usable: {format_numbers(divisors(num_features))}."
            )
        return self

    def parts(self, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """Count the parts of each axis of an (n, c, s) shape."""
        n, c, s = shape
        samples = n // self.samples_per_part if self.samples == ALL else self.samples
        return samples, self.channels or c, self.space or s

    def pool_rows(self, rows: Moments) -> Moments:
        """Pool a table (n, c, strips)."""
        n, c, t = rows.mean.shape
        return pool(rows, self.parts((n, c, t)))

    def pool_columns(self, columns: Moments) -> Moments:
        """Pool a table (domains or 1, c, strips) over channels and strips alone: its samples are pooled already."""
        domains, c, t = columns.mean.shape
        return pool(columns, (domains, *self.parts((1, c, t))[1:]))

    def shape_error(self, shape: tuple[int, int, int]) -> str:
        """Say why the samples or positions of an (n, c, s) shape do not divide; empty where they do."""
        n, c, s = shape
        if self.is_ghost and n % self.samples_per_part:
            return (
                f"{self} puts {self.samples_per_part} samples in each part; {n} samples came, which is no multiple of "
                f"{self.samples_per_part}. Use such a batch size and drop_last=True, or en for the whole batch."
            )
        if self.space != ALL and s % self.space:
            nearest = min(divisors(s), key=lambda strips: (abs(strips - self.space), strips))
            usable = f"bgn:{nearest * c}" if self.samples == 1 and self.channels == ALL else f"{nearest} strips"
            return (
                f"{self} cuts the {s} positions of each of {c} channels into {self.space} equal strips; {s} is not divisible by "
                f"{self.space}. Nearest usable: {usable}."
            )
        return ""


@dataclass(frozen=True)
class JointCut:
    """Divides channels and space together into equal parts, over all samples (bgn).

    It becomes a `Cut` once the channel count is known: whole channels where the number divides them, strips inside
    channels where they divide the number.
    """

    groups: int
    name: str = field(default="", compare=False)
    pools_samples = True
    is_ghost = False

    def __str__(self) -> str:
        return self.name or self.literal()

    def literal(self) -> str:
        """Write the cut itself, a spec that needs no name."""
        return f"[1,{self.groups}]"

    def fit(self, num_features: int) -> Cut:
        """Resolve the cut for a channel count."""
        if num_features % self.groups == 0:
            return Cut(1, self.groups, 1, name=str(self))
        if self.groups % num_features == 0:
            return Cut(1, ALL, self.groups // num_features, name=str(self))
        below = nearest_groups(self.groups, num_features)
        above = min(g for g in [*divisors(num_features), num_features * (self.groups // num_features + 1)] if g > self.groups)
        raise SpecError(
            f"{self} cuts {num_features} channels × positions into {self.groups} groups; neither number divides the other, "
            f"so groups would end inside a channel. Nearest usable: {below} or {above}."
        )


def nearest_groups(groups: int, num_features: int) -> int:
    """Give the largest usable BGN group number that is not above `groups`.

    >>> nearest_groups(128, 48), nearest_groups(64, 96)
    (96, 48)
    """
    if groups >= num_features:
        return groups // num_features * num_features
    return max(g for g in divisors(num_features) if g <= groups)
