"""Pasting of the masks of regions into the image."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

MAX_VALUES = 1 << 24
"""Maximum number of mask values to paste at a time (64 MB)."""


def paste_masks(masks: Tensor, boxes: Tensor, height: int, width: int) -> Tensor:
    """Return masks (k, s, s) of boxes (k, 4) at their places in an image, as (k, height, width); 0 outside of the boxes.

    The centre of a pixel is at +½; between the centres of the s × s values, masks are interpolated bilinearly.
    """
    if not len(masks):
        return masks.new_zeros(0, height, width)
    chunk = max(1, MAX_VALUES // (height * width))
    return torch.cat([_paste(*each, height, width) for each in zip(masks.split(chunk), boxes.split(chunk), strict=True)])  # type: ignore[no-untyped-call]


def _paste(masks: Tensor, boxes: Tensor, height: int, width: int) -> Tensor:
    x, y = (torch.arange(size, device=masks.device) + 0.5 for size in (width, height))
    x1, y1, x2, y2 = boxes.to(masks.dtype).unsqueeze(2).unbind(1)
    grid_x, grid_y = 2 * (x - x1) / (x2 - x1) - 1, 2 * (y - y1) / (y2 - y1) - 1
    grid = torch.stack([grid_x[:, None].expand(-1, height, -1), grid_y[:, :, None].expand(-1, -1, width)], 3)
    return grid_sample(masks[:, None], grid, align_corners=False)[:, 0]
