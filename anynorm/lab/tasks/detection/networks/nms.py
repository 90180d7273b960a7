"""Non-maximum suppression: keep a box unless a kept box of the same group with a higher score overlaps it too much.

Sort the boxes by score and let over[i, j] be whether box i < j overlaps box j. The kept boxes are the only solution of

    keep[j] = no i with keep[i] and over[i, j]

It is found by iterating this equation from keep = 1: after t iterations the first t entries are final, and usually all are after
about ten iterations. An iteration is one product of a vector and a matrix, so no step depends on a single box.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anynorm.lab.tasks.detection.networks.boxes import box_iou


def nms(boxes: Tensor, scores: Tensor, groups: Tensor, iou_threshold: float) -> Tensor:
    """Return the indices of the kept boxes, by decreasing score.

    Args:
        boxes: (n, 4).
        scores: (n,).
        groups: (n,) integers; boxes of different groups, such as classes, do not suppress each other.
        iou_threshold: boxes overlap too much if their IoU is greater.

    >>> boxes = torch.tensor([[0.0, 0.0, 8.0, 8.0], [0.0, 0.0, 8.0, 9.0], [20.0, 20.0, 24.0, 24.0]])
    >>> nms(boxes, torch.tensor([0.5, 0.9, 0.1]), torch.zeros(3), 0.5)
    tensor([1, 2])
    """
    order = scores.argsort(descending=True, stable=True)
    kept = []
    for group in torch.unique(groups):
        members = order[groups[order] == group]
        kept.append(members[_keep(box_iou(boxes[members], boxes[members]) > iou_threshold)])
    if len(kept) < 2:
        return kept[0] if kept else order
    is_kept = torch.zeros(len(boxes), dtype=torch.bool, device=boxes.device)
    is_kept[torch.cat(kept)] = True
    return order[is_kept[order]]


def _keep(over: Tensor) -> Tensor:
    """Return whether each box is kept.

    Args:
        over: whether two boxes overlap too much, (n, n), with boxes by decreasing score.
    """
    over = over.triu(1).float()
    keep = over.new_ones(len(over))
    while True:
        updated = (keep @ over == 0).float()
        if torch.equal(updated, keep):
            return keep.bool()
        keep = updated
