"""The losses of regions: class, box and mask. Those of proposals are in `rpn`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, smooth_l1_loss

from anynorm.lab.tasks.detection.networks import ops

BETA = 1 / 9
"""`beta` of the smooth L1 loss: where it changes from quadratic to linear (Detectron)."""


def box_loss(predicted: Tensor, expected: Tensor, count: int) -> Tensor:
    """Return the smooth L1 loss of coordinates (n, 4), divided by the number of all samples, positive and negative."""
    return smooth_l1_loss(predicted, expected, beta=BETA, reduction="sum") / max(count, 1)


def mask_targets(masks: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Return the targets of a mask head: the masks inside the boxes, resized.

    Args:
        masks: mask of the object of each region, (n, h, w) of bool.
        boxes: the regions (n, 4).
        size: height and width of the output.

    Returns:
        (n, size, size) of 0 and 1.
    """
    numbers = torch.arange(len(boxes), device=boxes.device)
    regions = torch.cat([numbers[:, None].to(boxes.dtype), boxes], 1)
    resized = ops.roi_align([masks[:, None].float()], [1], regions, size, torch.zeros_like(numbers))
    return (resized[:, 0] >= 0.5).float()


def mask_loss(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Return the mean binary cross entropy of the masks of the objects' classes (He et al. 2017, sec. 3).

    Args:
        logits: (n, classes, size, size).
        labels: the class of each region, (n,).
        targets: (n, size, size).
    """
    own = logits[torch.arange(len(labels), device=logits.device), labels]
    return binary_cross_entropy_with_logits(own, targets)
