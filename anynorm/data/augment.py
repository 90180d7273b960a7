"""Augmentation of a batch of images x (n, c, h, w): random crops and flips, cutout, mixup.

Every function draws its random numbers from a `torch.Generator`, so a batch depends on the generator's seed alone.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn


def random_crop(x: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Pad each image with zeros and crop it to its original size at a random position.

    Args:
        x: Images (n, c, h, w).
        padding: Number of zeros added on each side.
        generator: Source of the n positions.
    """
    n, c, height, width = x.shape
    padded = nn.functional.pad(x, (padding,) * 4)
    top, left = torch.randint(0, 2 * padding + 1, (2, n, 1, 1), generator=generator)
    rows = (top + torch.arange(height)[None, :, None]).expand(n, height, width)
    columns = (left + torch.arange(width)[None, None, :]).expand(n, height, width)
    index = (rows * (width + 2 * padding) + columns).reshape(n, 1, -1).expand(n, c, -1)
    return padded.flatten(2).gather(2, index).reshape(n, c, height, width)


def random_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Flip each image horizontally with probability 0.5."""
    return torch.where(torch.rand(len(x), 1, 1, 1, generator=generator) < 0.5, x.flip(-1), x)


def cutout(x: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Set a random square of each image to 0 (DeVries & Taylor 2017).

    Args:
        x: Images (n, c, h, w).
        size: Height and width of the square. Its center lies inside the image, so near an edge a part of it is outside.
        generator: Source of the n centers.
    """
    n, _, height, width = x.shape
    center = torch.rand(2, n, 1, generator=generator) * torch.tensor([height, width])[:, None, None]
    inside_rows = (torch.arange(height)[None] + 0.5 - center[0]).abs() < size / 2
    inside_columns = (torch.arange(width)[None] + 0.5 - center[1]).abs() < size / 2
    return x.masked_fill((inside_rows[:, :, None] & inside_columns[:, None, :])[:, None], 0)


def mixup(x: Tensor, targets: Tensor, alpha: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mix each image with another of the batch (Zhang et al. 2018).

        x' = λ x + (1 − λ) x[π],  targets' = λ targets + (1 − λ) targets[π],  λ ~ Beta(α, α),  π a random permutation

    Args:
        x: Images (n, c, h, w).
        targets: Class probabilities (n, num_classes).
        alpha: Parameter α of the beta distribution. λ is drawn once per batch.
        generator: Source of the permutation, and of the seed of numpy's generator, which draws λ.

    Returns:
        The mixed images and targets.
    """
    seed = int(torch.randint(2**62, (), generator=generator))
    weight = float(np.random.default_rng(seed).beta(alpha, alpha))
    order = torch.randperm(len(x), generator=generator)
    return weight * x + (1 - weight) * x[order], weight * targets + (1 - weight) * targets[order]
