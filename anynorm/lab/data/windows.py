"""Square windows of images in memory: random ones for training, central ones for evaluation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Window(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int

    def crop(self, x: Tensor) -> Tensor:
        """Return this part of images, labels or masks (…, h, w)."""
        return x[..., self.top : self.top + self.height, self.left : self.left + self.width]


def random_window(x: Tensor, size: int, generator: torch.Generator) -> Window:
    """Return a random square window of an image (…, h, w); axes shorter than the window are covered completely."""
    top, left = (int(torch.randint(max(length - size, 0) + 1, (), generator=generator)) for length in x.shape[-2:])
    return Window(top, left, *(min(length, size) for length in x.shape[-2:]))


def central_window(x: Tensor, size: int) -> Window:
    """Return the central square window of an image (…, h, w); axes shorter than the window are covered completely.

    >>> central_window(torch.zeros(3, 10, 4), 6)
    Window(top=2, left=0, height=6, width=4)
    """
    top, left = (max(length - size, 0) // 2 for length in x.shape[-2:])
    return Window(top, left, *(min(length, size) for length in x.shape[-2:]))


def whole_window(x: Tensor) -> Window:
    """Return the window that covers an image (…, h, w)."""
    return Window(0, 0, *x.shape[-2:])
