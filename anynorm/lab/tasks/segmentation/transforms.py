"""Crops of images and their labels for training, and batches of whole images for testing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anynorm.errors import SpecError
from anynorm.lab.data.windows import central_window, random_window
from anynorm.lab.tasks.segmentation.data import SegmentationDataset
from anynorm.lab.tasks.segmentation.masks import IGNORED, MaskFiles, Sample

functional = torch.nn.functional


@dataclass(frozen=True)
class RandomScaleCrop:
    """A random square crop of an image and its labels, randomly scaled.

    Smaller images are padded with the mean color and `IGNORED` labels.

    Args:
        image_size: side of the square.
        resize: length to which the shorter side of an image is resized before cropping; 0 for no resizing.
        min_scale: minimum of the random factor by which an image is scaled before cropping.
        max_scale: maximum of this factor; both 1 for no scaling.
        flip: flip half of the crops horizontally.

    Raises:
        SpecError: if an argument is out of range.
    """

    image_size: int
    resize: int = 0
    min_scale: float = 1.0
    max_scale: float = 1.0
    flip: bool = False

    def __post_init__(self) -> None:
        if self.image_size < 1 or self.resize < 0:
            raise SpecError(f"image_size must be at least 1 and resize at least 0; got {self.image_size} and {self.resize}.")
        if not 0 < self.min_scale <= self.max_scale:
            raise SpecError(f"scales must be 0 < min_scale <= max_scale; got {self.min_scale} and {self.max_scale}.")

    def __call__(self, data: SegmentationDataset, sample: Sample, generator: torch.Generator) -> Sample:
        """Return the standardized pixels (3, image_size, image_size) and the labels (image_size, image_size)."""
        image, labels = sample
        if self.resize or self.max_scale != self.min_scale or self.max_scale != 1:
            scale = self.min_scale + (self.max_scale - self.min_scale) * float(torch.rand((), generator=generator))
            size = scaled_size(labels.shape, self.resize, scale)
            image, labels = resize_image(image, size), resize_labels(labels, size)
        window = random_window(labels, self.image_size, generator)
        x, labels = data.standardize(window.crop(image)), window.crop(labels)
        missing = (0, self.image_size - labels.shape[1], 0, self.image_size - labels.shape[0])
        x, labels = functional.pad(x, missing), functional.pad(labels, missing, value=IGNORED)
        if self.flip and float(torch.rand((), generator=generator)) < 0.5:
            return x.flip(-1), labels.flip(-1)
        return x, labels


@dataclass(frozen=True)
class CentralSquares(Sequence[Sample]):
    """The central squares of images and their labels; sides shorter than the square are not cropped.

    Args:
        samples: images with labels.
        image_size: side of the squares.
    """

    samples: Sequence[Sample]
    image_size: int

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> Any:
        """Return a square and its labels."""
        image, labels = self.samples[index]
        window = central_window(labels, self.image_size)
        return window.crop(image), window.crop(labels)


def scaled_size(size: Sequence[int], resize: int, scale: float = 1.0) -> tuple[int, int]:
    """Return height and width of an image whose shorter side is resized (0 for its own size), then scaled by a factor.

    >>> scaled_size((180, 240), 90), scaled_size((180, 240), 0, 1.5)
    ((90, 120), (270, 360))
    """
    factor = scale * (resize / min(size) if resize else 1.0)
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def resize_image(image: Tensor, size: Sequence[int]) -> Tensor:
    """Resize an image (3, h, w) by bilinear interpolation with antialiasing; the dtype is kept."""
    if image.shape[-2:] == tuple(size):
        return image
    return functional.interpolate(image[None], tuple(size), mode="bilinear", antialias=True, align_corners=False)[0]


def resize_labels(labels: Tensor, size: Sequence[int]) -> Tensor:
    """Resize labels (h, w) by nearest-neighbor interpolation."""
    if labels.shape == tuple(size):
        return labels
    return functional.interpolate(labels[None, None], tuple(size), mode="nearest-exact")[0, 0]


def size_batches(samples: Sequence[Sample], batch_size: int, max_pixels: int) -> list[list[int]]:
    """Group images into batches of equal size, so that no padding is needed; small images come first.

    Images of the same size are shuffled with a fixed seed, because neighbors in a data set may be similar, which would bias batch
    statistics.

    Args:
        samples: images with labels.
        batch_size: maximum number of images per batch.
        max_pixels: maximum number of pixels per batch; a larger image forms a batch by itself.
    """
    sizes = [sample_size(samples, index) for index in range(len(samples))]
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0)).tolist()
    batches: list[list[int]] = []
    for index in sorted(order, key=lambda index: sizes[index]):
        last = batches[-1] if batches else []
        fits = last and sizes[last[0]] == sizes[index] and len(last) < batch_size
        if fits and (len(last) + 1) * sizes[index][0] * sizes[index][1] <= max_pixels:
            last.append(index)
        else:
            batches.append([index])
    return batches


def sample_size(samples: Sequence[Sample], index: int) -> tuple[int, int]:
    """Return height and width of an image, without decoding it if it is a file."""
    if isinstance(samples, CentralSquares):
        height, width = sample_size(samples.samples, index)
        return min(height, samples.image_size), min(width, samples.image_size)
    if isinstance(samples, MaskFiles):
        return samples.size(index)
    height, width = samples[index][1].shape
    return height, width


def read_batches(
    data: SegmentationDataset, samples: Sequence[Sample], batches: Sequence[Sequence[int]], resize: int = 0
) -> Iterator[Sample]:
    """Yield standardized images (n, 3, h, w), resized, and labels (n, h, w) in their own size."""
    for batch in batches:
        images, labels = zip(*(samples[index] for index in batch), strict=True)
        size = scaled_size(labels[0].shape, resize)
        yield data.standardize(torch.stack([resize_image(image, size) for image in images])), torch.stack(labels)
