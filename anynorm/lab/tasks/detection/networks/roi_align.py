"""RoIAlign (He et al. 2017, sec. 3): features of regions, bilinearly interpolated at a grid of points and averaged per bin.

A value of the output is the mean over 2 × 2 points of a bin, and a point is a weighted sum of its four neighbours: 16 rows of the
features, written as a matrix with one row per position. So RoIAlign is one `embedding_bag`. The rows of several feature maps (the
levels of a pyramid) can be put into one matrix; then a region's level is an offset of its indices, and all regions are pooled in
one call. Equal to torchvision's `roi_align(…, sampling_ratio=2, aligned=True)`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from anynorm.lab.tasks.detection.networks.boxes import box_area

SAMPLING_RATIO = 2
"""Sampling points per bin and axis: `sampling_ratio` of other libraries."""


def roi_align(features: Sequence[Tensor], strides: Sequence[int], regions: Tensor, output_size: int, levels: Tensor) -> Tensor:
    """Return the features of regions, as (k, c, output_size, output_size).

    Args:
        features: maps (n, c, h, w), one per level.
        strides: pixels of the image per position of each map.
        regions: (k, 5), the index of the image and x1, y1, x2, y2 in pixels.
        output_size: bins per axis.
        levels: (k,), the map of each region.
    """
    shapes = torch.tensor([[*each.shape[2:], len(each)] for each in features], device=regions.device)
    heights, widths, counts = shapes.unbind(1)
    starts = (heights * widths * counts).cumsum(0) - heights * widths * counts
    rows = torch.cat([each.permute(0, 2, 3, 1).flatten(0, 2) for each in features]).float()
    scale = 1 / torch.tensor(strides, dtype=torch.float32, device=regions.device)[levels]
    height, width = heights[levels][:, None], widths[levels][:, None]
    x_index, x_weight = _axis(regions[:, 1] * scale, regions[:, 3] * scale, width, output_size)
    y_index, y_weight = _axis(regions[:, 2] * scale, regions[:, 4] * scale, height, output_size)
    first = starts[levels] + regions[:, 0].long() * (height * width)[:, 0]
    index = first.view(-1, 1, 1, 1, 1) + (y_index * width[..., None])[:, :, None, :, None] + x_index[:, None, :, None, :]
    weight = y_weight[:, :, None, :, None] * x_weight[:, None, :, None, :]
    bins = embedding_bag(index.flatten(0, 2).flatten(1), rows, per_sample_weights=weight.flatten(0, 2).flatten(1), mode="sum")
    return bins.view(len(regions), output_size, output_size, rows.shape[1]).permute(0, 3, 1, 2).contiguous().to(features[0].dtype)


def _axis(start: Tensor, end: Tensor, size: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Return the positions (k, bins, 2 · SAMPLING_RATIO) along one axis from which each bin is interpolated, and their weights.

    Points up to one position outside of the map have the value of its border, and those farther outside the value 0. The centre
    of the first position is at ½.

    Args:
        start: (k,), start of each region, in positions of its map.
        end: (k,), end of each region.
        size: (k, 1), number of positions of the map.
        bins: number of bins per region.
    """
    step = (end - start) / (bins * SAMPLING_RATIO)
    points = start[:, None] - 0.5 + (torch.arange(bins * SAMPLING_RATIO, device=start.device) + 0.5) * step[:, None]
    is_inside = (points >= -1) & (points <= size)
    points = points.clamp(min=0).minimum(size - 1)
    low = points.long()
    fraction = points - low
    index = torch.stack([low, (low + 1).minimum(size - 1)], 2)
    weight = torch.stack([1 - fraction, fraction], 2) * is_inside[..., None] / SAMPLING_RATIO
    return index.view(len(start), bins, 2 * SAMPLING_RATIO), weight.view(len(start), bins, 2 * SAMPLING_RATIO)


def assign_levels(boxes: Tensor, strides: Sequence[int], *, size: float = 224.0, level: int = 4) -> Tensor:
    """Return the index of the level of a pyramid to which each box (n, 4) belongs (Lin et al. 2017, eq. 1).

        k = level + log2(√area / size), rounded down, is the level with stride 2^k; levels outside of the pyramid are replaced by
        the nearest

    Args:
        boxes: the boxes.
        strides: strides of the levels, each twice the one before.
        size: the side of a box on the level `level`; 224 pixels and 4 in the paper.
        level: the level of that size.

    >>> assign_levels(torch.tensor([[0.0, 0.0, 112.0, 112.0], [0.0, 0.0, 448.0, 448.0]]), [4, 8, 16, 32])
    tensor([1, 3])
    """
    exponents = level + (box_area(boxes).clamp(min=1e-12).sqrt() / size).log2() + 1e-6
    first = strides[0].bit_length() - 1
    return (exponents.floor().long() - first).clamp(0, len(strides) - 1)
