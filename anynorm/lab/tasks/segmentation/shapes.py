"""Generated images for segmentation: shapes with textures on a background of noise.

An image has discs, squares and triangles of random sizes and colors. The class of a pixel is the texture of its shape: stripes,
bars or checks; outside of the shapes it is the background. Brightness and contrast differ between images.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

CLASSES = ("background", "stripes", "bars", "checks")
IMAGE_SIZE = 64
NUM_TRAIN, NUM_TEST = 192, 48
PERIOD = 8
"""Period of the textures, in pixels."""
Mask = npt.NDArray[np.bool_]


def make_shapes(split: str) -> list[tuple[Tensor, Tensor]]:
    """Return the images of a split and their labels; they are the same in every call.

    Args:
        split: train or test.

    >>> image, labels = make_shapes("test")[0]
    >>> image.shape, labels.shape, labels.unique().tolist()
    (torch.Size([3, 64, 64]), torch.Size([64, 64]), [0, 1, 2, 3])
    """
    seed, count = {"train": (0, NUM_TRAIN), "test": (1, NUM_TEST)}[split]
    generator = np.random.default_rng(seed)
    return [_make_image(generator) for _ in range(count)]


def _make_image(generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    labels = np.zeros((IMAGE_SIZE, IMAGE_SIZE), np.uint8)
    image = generator.normal(generator.uniform(-1, 1, (3, 1, 1)), 0.3, (3, IMAGE_SIZE, IMAGE_SIZE))
    for label in generator.permutation([1, 2, 3, *generator.integers(1, 4, 2)]):
        inside = _shape(generator)
        labels[inside] = label
        texture = _texture(int(label), generator)
        color, other = generator.uniform(-1, 1, (2, 3, 1, 1))
        image = np.where(inside, np.where(texture, color, other - np.sign(color)) + 0.5 * image, image)
    contrast, brightness = generator.uniform(20, 60), generator.uniform(90, 160)
    pixels = (contrast * image + brightness + generator.normal(0, 6, image.shape)).clip(0, 255).astype(np.uint8)
    return torch.from_numpy(pixels), torch.from_numpy(labels)


def _shape(generator: np.random.Generator) -> Mask:
    """Return the pixels of a disc, a square or a triangle of random size and position."""
    radius = generator.uniform(9, 15)
    center = generator.uniform(4, IMAGE_SIZE - 4, (2, 1, 1))
    y, x = np.mgrid[:IMAGE_SIZE, :IMAGE_SIZE] - center
    kind = int(generator.integers(3))
    if kind == 0:
        return np.asarray(x**2 + y**2 < radius**2)
    if kind == 1:
        return np.asarray(np.maximum(abs(x), abs(y)) < 0.9 * radius)
    return np.asarray((y < 0.8 * radius) & (y > 2 * abs(x) - radius))


def _texture(label: int, generator: np.random.Generator) -> Mask:
    """Return a texture of one class: horizontal stripes, vertical bars or checks."""
    phases = generator.integers(0, PERIOD, (2, 1, 1))
    y, x = (np.mgrid[:IMAGE_SIZE, :IMAGE_SIZE] + phases) % PERIOD < PERIOD // 2
    return np.asarray({1: y, 2: x, 3: x ^ y}[label])
