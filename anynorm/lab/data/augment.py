"""Augmentation of a batch of images x (n, c, h, w): random crops and flips, cutout, mixup.

All random numbers are drawn from a CPU `torch.Generator`, so a batch depends only on the seed, not on the device of x. Copies to
that device are asynchronous. Several micro-batches, one after the other in x, have one generator each: the result is that of one
call per micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

Generators = torch.Generator | Sequence[torch.Generator]
"""A CPU generator of random numbers, or one per micro-batch of equal size."""


def _draw(function: Callable[[int, torch.Generator], Tensor], count: int, generators: Generators, axis: int = 0) -> Tensor:
    """Return the random numbers `function(samples, generator)` of `count` samples, which are along an axis."""
    if isinstance(generators, torch.Generator):
        return function(count, generators)
    return torch.cat([function(count // len(generators), generator) for generator in generators], axis)


def random_crop(x: Tensor, padding: int, generator: Generators) -> Tensor:
    """Pad each image with zeros and crop it to its original size at a random position.

    Args:
        x: Images (n, c, h, w).
        padding: Number of zeros added on each side.
        generator: CPU generator of the positions, or one per micro-batch.
    """
    n, c, height, width = x.shape
    padded = torch.constant_pad_nd(x, (padding,) * 4)
    image, _, row, column = strides = padded.stride()
    tops, lefts = _draw(
        lambda count, each: torch.randint(0, 2 * padding + 1, (2, count), generator=each), n, generator, axis=1
    ).tolist()
    # as_strided makes a view in half the time of three slices; a batch of 2 consists of overhead
    offsets = [index * image + top * row + left * column for index, (top, left) in enumerate(zip(tops, lefts, strict=True))]
    return torch.stack([padded.as_strided((c, height, width), strides[1:], offset) for offset in offsets])


def random_flip(x: Tensor, generator: Generators) -> Tensor:
    """Flip each image horizontally with probability 0.5."""
    numbers = _draw(lambda count, each: torch.rand(count, 1, 1, 1, generator=each), len(x), generator)
    is_flipped = (numbers < 0.5).to(x.device, non_blocking=True)
    return torch.where(is_flipped, x.flip(-1), x)


def cutout(x: Tensor, size: int, generator: Generators) -> Tensor:
    """Set a random square of each image to 0 (DeVries & Taylor 2017).

    Args:
        x: Images (n, c, h, w).
        size: Height and width of the square. Its center is inside the image, so a part of it may be outside.
        generator: CPU generator of the centers, or one per micro-batch.
    """
    n, _, height, width = x.shape
    numbers = _draw(lambda count, each: torch.rand(2, count, 1, generator=each), n, generator, axis=1)
    center = numbers * torch.tensor([height, width])[:, None, None]
    distance = (torch.arange(max(height, width)) + 0.5 - center).abs()
    inside = (distance < size / 2).to(x.device, non_blocking=True)
    return x.masked_fill(inside[0, :, None, :height, None] & inside[1, :, None, None, :width], 0)


def mixup(x: Tensor, targets: Tensor, alpha: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mix each image with another of the batch (Zhang et al. 2018).

        x' = λ x + (1 − λ) x[π],  targets' = λ targets + (1 − λ) targets[π],  λ ~ Beta(α, α),  π a random permutation

    Args:
        x: Images (n, c, h, w).
        targets: Class probabilities (n, num_classes).
        alpha: Parameter α of the beta distribution. λ is drawn once per batch.
        generator: CPU generator of the permutation, and of the seed of the numpy generator that draws λ.

    Returns:
        The mixed images and targets.
    """
    seed = int(torch.randint(2**62, (), generator=generator))
    weight = float(np.random.default_rng(seed).beta(alpha, alpha))
    order = torch.randperm(len(x), generator=generator).to(x.device, non_blocking=True)
    return weight * x + (1 - weight) * x[order], weight * targets + (1 - weight) * targets[order]
