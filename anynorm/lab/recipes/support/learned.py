"""When a classifier has learned: its training accuracy is far above chance."""

from __future__ import annotations

from anynorm.errors import DataError
from anynorm.lab.recipes.support.controls import Learned

NUM_CLASSES = {"digits": 10, "mnist": 10, "cifar10": 10, "cifar100": 100, "pets": 37, "caltech256": 257, "imagenet": 1000}
"""Number of classes by the name of the data set, without image size and kind of folder."""
TIMES_CHANCE = 2.5
"""A training accuracy below this multiple of chance is that of a network that has not learned."""


def chance(data: str) -> float:
    """Return the accuracy of guessing, in %.

    Args:
        data: `Config.data`, such as "cifar10@16" or "folder:pets".

    Raises:
        DataError: if the number of classes is not in `NUM_CLASSES`.

    >>> chance("cifar10@16"), chance("stream:imagenet")
    (10.0, 0.1)
    """
    name = data.rpartition(":")[2].rpartition("/")[2].partition("@")[0]
    if name not in NUM_CLASSES:
        raise DataError(f"the number of classes of {data!r} is not known. Known: {' '.join(NUM_CLASSES)}.")
    return 100 / NUM_CLASSES[name]


def learned(data: str, at_least: float | None = None) -> Learned:
    """Return the control that every network that a claim compares has learned.

    Args:
        data: `Config.data`.
        at_least: training accuracy in % that every run must reach; None for `TIMES_CHANCE` × chance.
    """
    return Learned(TIMES_CHANCE * chance(data) if at_least is None else at_least)
