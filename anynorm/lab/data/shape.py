"""The shape of the data of a model, and numbers of channels that norms can divide into groups."""

from __future__ import annotations

from typing import NamedTuple


class DataShape(NamedTuple):
    """Shape of the images (channels, height, width), and number of classes."""

    channels: int
    height: int
    width: int
    num_classes: int

    @property
    def is_small(self) -> bool:
        """Whether the images (up to 64 pixels) are too small for a stem that halves them twice."""
        return min(self.height, self.width) <= 64


def scale_channels(channels: int, width: float, divisor: int = 8) -> int:
    """Return `channels * width`, rounded to a positive multiple of `divisor` so that group norms divide it.

    >>> scale_channels(64, 0.35), scale_channels(16, 0.1)
    (24, 8)
    """
    return max(divisor, round(channels * width / divisor) * divisor)
