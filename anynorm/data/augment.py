"""Augmentation of a whole batch at once: crops from a margin, flips, blanked squares, mixtures of pairs."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def cropped(x: Tensor, margin: int, chance: torch.Generator) -> Tensor:
    """Put a margin of zeros around each image, and cut it out at a random place again."""
    n, c, height, width = x.shape
    padded = nn.functional.pad(x, (margin,) * 4)
    top, left = torch.randint(0, 2 * margin + 1, (2, n, 1, 1), generator=chance)
    rows = (top + torch.arange(height)[None, :, None]).expand(n, height, width)
    columns = (left + torch.arange(width)[None, None, :]).expand(n, height, width)
    flat = (rows * (width + 2 * margin) + columns).reshape(n, 1, -1).expand(n, c, -1)
    return padded.flatten(2).gather(2, flat).reshape(n, c, height, width)


def flipped(x: Tensor, chance: torch.Generator) -> Tensor:
    """Flip half of the images, left to right."""
    return torch.where(torch.rand(len(x), 1, 1, 1, generator=chance) < 0.5, x.flip(-1), x)


def blanked(x: Tensor, side: int, chance: torch.Generator) -> Tensor:
    """Set a square of each image to 0; at the edge a part of it is outside."""
    n, _, height, width = x.shape
    centre = torch.rand(2, n, 1, generator=chance) * torch.tensor([height, width])[:, None, None]
    inside_rows = (torch.arange(height)[None] + 0.5 - centre[0]).abs() < side / 2
    inside_columns = (torch.arange(width)[None] + 0.5 - centre[1]).abs() < side / 2
    return x.masked_fill((inside_rows[:, :, None] & inside_columns[:, None, :])[:, None], 0)


def mixed(x: Tensor, targets: Tensor, alpha: float, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mix each image with another, and their targets (n, classes) by the same share, drawn from Beta(α, α) for the batch.

    The share is drawn from two gamma variables (Marsaglia & Tsang's method needs no more than uniform and normal numbers).
    """
    a, b = (_gamma(alpha, chance) for _ in range(2))
    share = a / (a + b) if a + b > 0 else 0.5
    order = torch.randperm(len(x), generator=chance)
    return share * x + (1 - share) * x[order], share * targets + (1 - share) * targets[order]


def _gamma(shape: float, chance: torch.Generator) -> float:
    """Draw a gamma variable (Marsaglia & Tsang 2000)."""
    if shape < 1:
        return _gamma(shape + 1, chance) * math.pow(float(torch.rand((), generator=chance)), 1 / shape)
    d = shape - 1 / 3
    while True:
        normal = float(torch.randn((), generator=chance))
        volume = (1 + normal / math.sqrt(9 * d)) ** 3
        uniform = float(torch.rand((), generator=chance, dtype=torch.float64))
        if volume > 0 and uniform > 0 and math.log(uniform) < normal**2 / 2 + d * (1 - volume + math.log(volume)):
            return d * volume
