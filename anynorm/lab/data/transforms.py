"""From one image file to uint8 pixels (3, image_size, image_size): crops, flips and color jitter.

    TrainTransform    random-resized crop (Szegedy et al. 2015), horizontal flip, brightness, contrast and saturation
    TestTransform     shorter side resized to image_size · resize_ratio (256/224), then the center
    RandomCrop        shorter side resized to a given size, then a random square
    CenterCrop        shorter side resized to a given size, then the central square

A transform is called with a Pillow image and a numpy generator, and depends only on these. Images are opened but not yet
decoded: a JPEG that is much larger than needed is decoded at 1/2, 1/4 or 1/8 of its size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from anynorm.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = npt.NDArray[Any]
Box = tuple[int, int, int, int]
"""Left, top, right, bottom, in pixels."""
ASPECT_RATIOS = (3 / 4, 4 / 3)
MAX_TRIES = 10
RESIZE_RATIO = 256 / 224
"""Ratio of the shorter side of a test image before center cropping to image_size, after training with random-resized crops."""
REDUCING_GAP = 2
"""A JPEG is decoded at a reduced size if that is still this many times larger than needed, so that the loss is not visible."""


@dataclass(frozen=True)
class TrainTransform:
    """Augment a training image.

    Args:
        image_size: Height and width of the result.
        min_area: Minimum area of a random crop, as a fraction of the image. With 0, the central square is used.
        flip: Flip half of the images horizontally.
        color_jitter: Brightness, contrast and saturation are multiplied by factors in [1 − color_jitter, 1 + color_jitter].

    Raises:
        DataError: if an argument is out of range.
    """

    image_size: int
    min_area: float = 0.08
    flip: bool = True
    color_jitter: float = 0.0

    def __post_init__(self) -> None:
        _check_size(self.image_size)
        if not 0 <= self.min_area <= 1:
            raise DataError(f"min_area must be in [0, 1]; got {self.min_area}.")
        if not 0 <= self.color_jitter <= 1:
            raise DataError(f"color_jitter must be in [0, 1]; got {self.color_jitter}.")

    def __call__(self, image: Image, generator: np.random.Generator) -> Pixels:
        """Return the augmented pixels, uint8 (3, image_size, image_size)."""
        from PIL.Image import Transpose

        size = (self.image_size, self.image_size)
        if self.min_area:
            box = random_box(*image.size, min_area=self.min_area, generator=generator)
            result = resize_box(image, box, size)
        else:
            result = central_square(image, self.image_size)
        if self.flip and generator.random() < 0.5:
            result = result.transpose(Transpose.FLIP_LEFT_RIGHT)
        return to_pixels(jitter(result, self.color_jitter, generator) if self.color_jitter else result)


@dataclass(frozen=True)
class TestTransform:
    """Resize the shorter side of an image and crop the center. The generator is not used.

    Args:
        image_size: Height and width of the result.
        resize_ratio: The shorter side after resizing, divided by image_size. 256/224 suits training with random-resized crops,
            whose objects are larger on average than in whole images; 1 suits training with central squares.

    Raises:
        DataError: if `image_size` is not positive, or `resize_ratio` is below 1.
    """

    __test__ = False  # the name does not make it a test
    image_size: int
    resize_ratio: float = RESIZE_RATIO

    def __post_init__(self) -> None:
        _check_size(self.image_size)
        if not self.resize_ratio >= 1:
            raise DataError(f"resize_ratio must be at least 1; got {self.resize_ratio}.")

    def __call__(self, image: Image, generator: np.random.Generator | None = None) -> Pixels:
        """Return the pixels, uint8 (3, image_size, image_size)."""
        short, (width, height) = round(self.image_size * self.resize_ratio), image.size
        resized = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
        whole = resize_box(image, (0, 0, width, height), resized)
        left, top = (round((side - self.image_size) / 2) for side in resized)
        return _square_pixels(whole, left, top, self.image_size)


@dataclass(frozen=True)
class RandomCrop:
    """Resize the shorter side of an image and crop a random square.

    Args:
        resize: the shorter side after resizing, at least `image_size`.
        image_size: the side of the square.
    """

    resize: int
    image_size: int

    def __call__(self, image: Image, generator: np.random.Generator) -> Pixels:
        """Return the pixels, uint8 (3, image_size, image_size)."""
        whole = resize_shorter_side(image, self.resize)
        left, top = (int(generator.integers(side - self.image_size + 1)) for side in whole.size)
        return _square_pixels(whole, left, top, self.image_size)


@dataclass(frozen=True)
class CenterCrop:
    """Resize the shorter side of an image and crop the central square; see `RandomCrop`."""

    resize: int
    image_size: int

    def __call__(self, image: Image, generator: np.random.Generator) -> Pixels:
        """Return the pixels, uint8 (3, image_size, image_size); the generator is not used."""
        whole = resize_shorter_side(image, self.resize)
        left, top = ((side - self.image_size) // 2 for side in whole.size)
        return _square_pixels(whole, left, top, self.image_size)


def resize_shorter_side(image: Image, size: int) -> Image:
    """Return an RGB image, resized so that its shorter side has `size` pixels; the aspect ratio is kept."""
    width, height = image.size
    scale = size / min(width, height)
    return resize_box(image, (0, 0, width, height), (max(size, round(width * scale)), max(size, round(height * scale))))


def random_box(width: int, height: int, *, min_area: float, generator: np.random.Generator) -> Box:
    """Return the box of a random-resized crop.

        area ~ U[min_area, 1] · width · height,  log(aspect ratio) ~ U[log 3/4, log 4/3],  position ~ U(all that fit)

    Boxes that do not fit are drawn again. After 10 attempts, the largest central box with an allowed aspect ratio is used.
    """
    low, high = ASPECT_RATIOS
    for _ in range(MAX_TRIES):
        area = generator.uniform(min_area, 1) * width * height
        ratio = math.exp(generator.uniform(math.log(low), math.log(high)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(generator.integers(width - w + 1)), int(generator.integers(height - h + 1))
            return left, top, left + w, top + h
    w, h = min(width, round(height * high)), min(height, round(width / low))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def resize_box(image: Image, box: Box, size: tuple[int, int]) -> Image:
    """Crop an image in RGB to a box and resize it.

    A JPEG is decoded at 1/k of its size if the box is then still `REDUCING_GAP` times larger than the result, in both directions.
    """
    from PIL.Image import Resampling

    left, top, right, bottom = box
    least = (
        REDUCING_GAP * side * old / new for side, old, new in zip(size, image.size, (right - left, bottom - top), strict=True)
    )
    full_width = image.size[0]
    reduced = image.draft(None, tuple(map(math.ceil, least)))  # type: ignore[arg-type]
    scale = 1.0 if reduced is None else reduced[1][2] / full_width
    if scale == 1:
        return to_rgb(image).crop(box).resize(size, Resampling.BILINEAR)
    return to_rgb(image).resize(size, Resampling.BILINEAR, (left * scale, top * scale, right * scale, bottom * scale))


def central_square(image: Image, size: int) -> Image:
    """Return the central square of an image in RGB, resized to size × size pixels."""
    from PIL import ImageOps

    return ImageOps.fit(to_rgb(image), (size, size))


def jitter(image: Image, strength: float, generator: np.random.Generator) -> Image:
    """Multiply brightness, contrast and saturation, in random order, by random factors in [1 − strength, 1 + strength]."""
    from PIL import ImageEnhance

    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    factors = generator.uniform(1 - strength, 1 + strength, len(enhancers))
    for index in generator.permutation(len(enhancers)):
        image = enhancers[index](image).enhance(factors[index])
    return image


def to_rgb(image: Image) -> Image:
    """Return an image in RGB; 16-bit values, which Pillow would clip at 255, are divided by 257."""
    is_16_bit = image.mode.startswith("I")
    return (image.point(lambda value: value / 257).convert("L") if is_16_bit else image).convert("RGB")


def to_pixels(image: Image) -> Pixels:
    """Return an RGB image as uint8 (3, height, width)."""
    return np.ascontiguousarray(np.moveaxis(np.asarray(image, dtype=np.uint8), 2, 0))


def _square_pixels(image: Image, left: int, top: int, size: int) -> Pixels:
    return to_pixels(image.crop((left, top, left + size, top + size)))


def _check_size(image_size: int) -> None:
    if image_size < 1:
        raise DataError(f"image_size must be at least 1; got {image_size}.")
