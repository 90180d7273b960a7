"""What a model has to fit: images and classes; and widths that norms can divide."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """Images (channels, height, width) and the number of classes."""

    channels: int
    height: int
    width: int
    classes: int

    @property
    def is_small(self) -> bool:
        """Whether a stem that halves the image twice would lose it."""
        return min(self.height, self.width) <= 64


def scaled(channels: int, width: float, divisor: int = 8) -> int:
    """Scale a number of channels and round it to a multiple, so that groups divide it.

    >>> scaled(64, 0.35), scaled(16, 0.1)
    (24, 8)
    """
    return max(divisor, round(channels * width / divisor) * divisor)
