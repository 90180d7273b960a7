"""The shape of the data of a model."""

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
