"""The metric of each test item (an image, a pair of images, a video), as text or numbers in a record.

A metric in % of correct items has one bit per item, "COUNT:BITS" with the bits in base64. Another metric has one number per item,
whose mean is the metric. A metric that is not a mean over items, such as AP, has its jackknife pseudo-values (Tukey 1958): with
the metric m of all n items and m_i without item i,

    x_i = n m − (n − 1) m_i

If there are more than `MAX_ITEMS` numbers, groups of neighboring items are the items, so that a record stays small.

>>> pack_hits([True, False, True])
'3:oA=='
>>> unpack_items("3:oA==")
array([100.,   0., 100.])
>>> pseudo_values(2.0, [2.5, 1.5])
[1.5, 2.5]
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DIGITS = 6
"""Significant digits of the number of an item."""
MAX_ITEMS = 200
"""Largest number of numbers per metric."""
ItemValues = Sequence[bool] | Sequence[float]
"""One value per test item: whether it was classified correctly, or a number."""


def pack_items(values: ItemValues) -> str | list[float]:
    """Return the values of items as in a record: a text if they are bools, see `pack_hits`, or else numbers."""
    is_hit = all(isinstance(value, bool) for value in values)
    return pack_hits([bool(value) for value in values]) if is_hit else pack_numbers(group_means(values))


def pack_hits(hits: Sequence[bool]) -> str:
    """Return "COUNT:BITS" with the bits in base64, eight images per byte."""
    bits = np.packbits(np.asarray(hits, dtype=bool))
    return f"{len(hits)}:{base64.b64encode(bits.tobytes()).decode()}"


def unpack_hits(text: str) -> NDArray[np.float64]:
    """Return 1.0 for each image that was classified correctly and 0.0 for each other, from the text of `pack_hits`."""
    count, _, bits = text.partition(":")
    return np.unpackbits(np.frombuffer(base64.b64decode(bits), dtype=np.uint8), count=int(count)).astype(float)


def pack_numbers(values: Sequence[float]) -> list[float]:
    """Return numbers rounded for a record."""
    return [float(f"{value:.{DIGITS}g}") for value in values]


def unpack_items(packed: str | Sequence[float]) -> NDArray[np.float64]:
    """Return the metric of each item: 100 or 0 from the text of `pack_hits`, or the numbers themselves."""
    return 100.0 * unpack_hits(packed) if isinstance(packed, str) else np.asarray(packed, dtype=float)


def split_items(count: int, num_groups: int = MAX_ITEMS) -> list[range]:
    """Divide items into groups of neighbors, whose sizes differ by at most 1; one item per group if there are few.

    >>> split_items(5, 2), split_items(2, 3)
    ([range(0, 3), range(3, 5)], [range(0, 1), range(1, 2)])
    """
    num_groups = min(count, num_groups)
    return [range(-(-k * count // num_groups), -(-(k + 1) * count // num_groups)) for k in range(num_groups)]


def group_means(values: Sequence[float], num_groups: int = MAX_ITEMS) -> list[float]:
    """Return the mean of each group of `split_items`.

    >>> group_means([1.0, 3.0, 4.0, 6.0], 2)
    [2.0, 5.0]
    """
    array = np.asarray(values, dtype=float)
    return [float(array[group.start : group.stop].mean()) for group in split_items(len(array), num_groups)]


def pseudo_values(metric: float, without_item: Sequence[float]) -> list[float]:
    """Return the jackknife pseudo-value of each item.

    Args:
        metric: the metric of all items.
        without_item: the metric without each of the items.
    """
    n = len(without_item)
    return [n * metric - (n - 1) * other for other in without_item]
