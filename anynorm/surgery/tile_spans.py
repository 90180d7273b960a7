"""The tiles of an image: where they lie, and where their parts are in feature maps and outputs.

A tile is read with a halo, so that convolutions see the true neighbors of its own part. Along one axis it is a `Span`. A feature
map of a tile is the tile at a stride, which must divide the ends of the tile and of its own part.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from anynorm.errors import SurgeryError


class Span(NamedTuple):
    """A tile along one axis of the image: the positions that are read, and among them its own part."""

    start: int
    stop: int
    own_start: int
    own_stop: int

    def own(self, length: int) -> slice:
        """Return the own part in a feature map of the tile with `length` positions.

        Raises:
            SurgeryError: if the feature map is not the tile at a stride that divides the ends of the tile and of its own part.

        >>> Span(64, 192, 96, 160).own(32)
        slice(8, 24, None)
        """
        start, own_start, own_stop = self._scale(length)
        return slice(own_start - start, own_stop - start)

    def own_in_image(self, length: int) -> slice:
        """Return the own part in a feature map of the whole image, if that of the tile has `length` positions; see `own`."""
        return slice(*self._scale(length)[1:])

    def _scale(self, length: int) -> list[int]:
        """Return the start of the tile and the ends of its own part in units of the positions of a feature map."""
        size = self.stop - self.start
        ends = [position * length for position in self[:1] + self[2:]]
        has_stride = length and max(size, length) % min(size, length) == 0
        if not has_stride or any(end % size for end in ends):
            raise SurgeryError(
                f"the {size} pixels from {self.start} to {self.stop}, of which {self.own_start} to {self.own_stop} are the tile "
                f"without its halo, have {length} positions. tile, halo and the size of the image must be multiples of the total "
                "stride of the model, and its convolutions padded."
            )
        return [end // size for end in ends]


def windows(image: Tensor, tile: int | Sequence[int], halo: int | Sequence[int]) -> list[tuple[Span, ...]]:
    """Return the spans of the tiles of an image."""
    if not isinstance(image, Tensor) or image.dim() < 3 or not image.numel():
        got = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise SurgeryError(f"image must be a tensor (n, c, …) with positions; got {got}.")
    space = image.shape[2:]
    sides, halos = _per_axis(tile, "tile", len(space), smallest=1), _per_axis(halo, "halo", len(space), smallest=0)
    axes = [
        [
            Span(max(start - margin, 0), min(start + side + margin, size), start, min(start + side, size))
            for start in range(0, size, side)
        ]
        for size, side, margin in zip(space, sides, halos, strict=True)
    ]
    return list(itertools.product(*axes))


def crop(x: Tensor, slices: list[slice]) -> Tensor:
    """Return a part of the positions of x, as a view."""
    index: Any = (..., *slices)
    part: Tensor = x[index]
    return part


def _per_axis(value: Any, name: str, num_axes: int, *, smallest: int) -> list[int]:
    numbers = [value] * num_axes if isinstance(value, int) else list(value) if isinstance(value, Sequence) else []
    if len(numbers) != num_axes or not all(type(number) is int and number >= smallest for number in numbers):
        raise SurgeryError(f"{name} must be an integer of at least {smallest}, or {num_axes} of them; got {value!r}.")
    return numbers


def write(output: Tensor | None, y: Any, spans: tuple[Span, ...], image: Tensor) -> Tensor:
    """Copy the own part of the output of a tile into the output of the image, which the first tile creates."""
    if not isinstance(y, Tensor) or y.dim() != 2 + len(spans):
        got = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise SurgeryError(
            f"The output of the model must be a tensor (n, channels, …) with {len(spans)} axes of positions; got {got}. "
            "forward=… can select one."
        )
    lengths = y.shape[2:]
    try:
        own = [span.own(length) for span, length in zip(spans, lengths, strict=True)]
    except SurgeryError as error:
        raise SurgeryError(f"Output of the model: {error}") from None
    if output is None:
        sizes = zip(image.shape[2:], lengths, spans, strict=True)
        space = [size * length // (span.stop - span.start) for size, length, span in sizes]
        output = y.new_empty(*y.shape[:2], *space)
    crop(output, [span.own_in_image(length) for span, length in zip(spans, lengths, strict=True)]).copy_(crop(y, own))
    return output
