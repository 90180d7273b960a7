"""Boxes as rows (x1, y1, x2, y2) in pixels, and their coordinates relative to reference boxes such as anchors.

    dx = (x − x_ref) / w_ref      dw = log(w / w_ref)      and the same for y and h; x and y are centres

Each is multiplied by a weight, the inverse of its typical magnitude (Girshick 2015, as in the public code of Fast R-CNN).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

MAX_LOG_SCALE = math.log(1000 / 16)
"""Maximum dw and dh when decoding, so that exp does not overflow (Detectron)."""
RPN_WEIGHTS, BOX_HEAD_WEIGHTS = (1.0, 1.0, 1.0, 1.0), (10.0, 10.0, 5.0, 5.0)


def box_area(boxes: Tensor) -> Tensor:
    """Return the area of each box (n, 4).

    >>> box_area(torch.tensor([[1.0, 1.0, 4.0, 3.0]]))
    tensor([6.])
    """
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def intersection(a: Tensor, b: Tensor) -> Tensor:
    """Return the intersection areas of boxes (n, 4) and boxes (m, 4), as (n, m)."""
    width, height = (
        (torch.minimum(a[:, None, axis + 2], b[:, axis + 2]) - torch.maximum(a[:, None, axis], b[:, axis])).clamp_(min=0)
        for axis in (0, 1)
    )
    return width * height


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    """Return the intersection over union of boxes (n, 4) and boxes (m, 4), as (n, m); 0 for two empty boxes.

    >>> box_iou(torch.tensor([[0.0, 0.0, 2.0, 2.0]]), torch.tensor([[1.0, 0.0, 3.0, 2.0]]))
    tensor([[0.3333]])
    """
    shared = intersection(a, b)
    union = box_area(a)[:, None] + box_area(b) - shared
    return shared / union.clamp_(min=torch.finfo(union.dtype).tiny)


def encode(boxes: Tensor, references: Tensor, weights: Sequence[float]) -> Tensor:
    """Return boxes (n, 4) relative to reference boxes (n, 4), as weighted (dx, dy, dw, dh)."""
    center, size = _centers_and_sizes(boxes)
    reference_center, reference_size = _centers_and_sizes(references)
    deltas = torch.cat([(center - reference_center) / reference_size, (size / reference_size).log()], 1)
    return deltas * deltas.new_tensor(weights)


def decode(deltas: Tensor, references: Tensor, weights: Sequence[float]) -> Tensor:
    """Return the boxes (n, …, 4) with coordinates `deltas` (n, …, 4) relative to reference boxes (n, 4); see `encode`.

    >>> anchor = torch.tensor([[0.0, 0.0, 8.0, 8.0]])
    >>> decode(encode(torch.tensor([[2.0, 0.0, 6.0, 8.0]]), anchor, RPN_WEIGHTS), anchor, RPN_WEIGHTS)
    tensor([[2., 0., 6., 8.]])
    """
    center, size = _centers_and_sizes(references.view(len(references), *[1] * (deltas.dim() - 2), 4))
    offset, log_scale = (deltas / deltas.new_tensor(weights)).split(2, -1)  # type: ignore[no-untyped-call]
    center, size = center + offset * size, log_scale.clamp(max=MAX_LOG_SCALE).exp() * size
    return torch.cat([center - size / 2, center + size / 2], -1)


def clip_boxes(boxes: Tensor, height: float | Tensor, width: float | Tensor) -> Tensor:
    """Return boxes (…, 4) clipped to an image; the sizes may be tensors that broadcast with (…)."""
    x = boxes[..., 0::2].clamp(min=0).minimum(_limit(width, boxes))
    y = boxes[..., 1::2].clamp(min=0).minimum(_limit(height, boxes))
    return torch.stack([x[..., 0], y[..., 0], x[..., 1], y[..., 1]], -1)


def is_large(boxes: Tensor, min_size: float) -> Tensor:
    """Whether both sides of each box (…, 4) have at least `min_size` pixels; False for boxes with NaN."""
    return ((boxes[..., 2:] - boxes[..., :2]) >= min_size).all(-1)


def _limit(size: float | Tensor, boxes: Tensor) -> Tensor:
    return torch.as_tensor(size, dtype=boxes.dtype, device=boxes.device)[..., None]


def _centers_and_sizes(boxes: Tensor) -> tuple[Tensor, Tensor]:
    return (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]
