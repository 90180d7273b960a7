"""Anchors: boxes of a few sizes and aspect ratios, centred at every position of a feature map (Ren et al. 2015, sec. 3.1.1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def base_anchors(sizes: Sequence[float], ratios: Sequence[float]) -> Tensor:
    """Return anchors centred at the origin, as (len(sizes) · len(ratios), 4).

    Args:
        sizes: square roots of the areas, in pixels.
        ratios: height over width.

    >>> base_anchors([8.0], [1.0, 4.0])
    tensor([[-4., -4.,  4.,  4.],
            [-2., -8.,  2.,  8.]])
    """
    size, root = torch.tensor(sizes, dtype=torch.float32)[:, None], torch.tensor(ratios, dtype=torch.float32).sqrt()
    width, height = (size / root).flatten() / 2, (size * root).flatten() / 2
    return torch.stack([-width, -height, width, height], 1)


def grid_anchors(base: Tensor, height: int, width: int, stride: int) -> Tensor:
    """Return anchors at every position of a feature map, in the order (y, x, anchor), as (height · width · anchors, 4).

    The centre of position (y, x) is the pixel (stride · (y + ½), stride · (x + ½)) of the image.
    """
    y, x = ((torch.arange(count, device=base.device, dtype=base.dtype) + 0.5) * stride for count in (height, width))
    y, x = torch.meshgrid(y, x, indexing="ij")
    centers = torch.stack([x, y, x, y], 2).view(-1, 1, 4)
    return (centers + base).view(-1, 4)
