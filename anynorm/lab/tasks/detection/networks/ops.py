"""Operators of torchvision if it is installed and works, otherwise the equivalent ones of this package.

torchvision may be installed without a kernel for the device, or built for another torch: then importing it raises RuntimeError,
or a call does. So it is tested once per type of device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from anynorm.lab.tasks.detection.networks import nms as own_nms
from anynorm.lab.tasks.detection.networks import roi_align as own_roi_align


@cache
def torchvision_ops(device: str) -> Any | None:
    """Return `torchvision.ops` if it works on a type of device, else None."""
    try:
        ops = import_module("torchvision.ops")
        box = torch.tensor([[0.0, 0.0, 4.0, 4.0]], device=device)
        ops.nms(box, torch.ones(1, device=device), 0.5)
        # its RoIAlign has an implementation in Python, so that only the kernel's existence can be tested
        torch.ops.torchvision.roi_align(torch.zeros(1, 1, 4, 4, device=device), box.new_zeros(1, 5), 1.0, 1, 1, 2, True)
    except (ImportError, RuntimeError, AttributeError):
        return None
    return ops


def nms(boxes: Tensor, scores: Tensor, groups: Tensor, iou_threshold: float) -> Tensor:
    """Return the indices of the boxes kept by non-maximum suppression in each group; see `networks.nms`."""
    ops = torchvision_ops(boxes.device.type)
    if ops is None:
        return own_nms.nms(boxes, scores, groups, iou_threshold)
    kept: Tensor = ops.batched_nms(boxes, scores, groups, iou_threshold)
    return kept


def roi_align(features: Sequence[Tensor], strides: Sequence[int], regions: Tensor, output_size: int, levels: Tensor) -> Tensor:
    """Return the features of regions; see `anynorm.lab.tasks.detection.networks.roi_align`."""
    ops = torchvision_ops(regions.device.type)
    if ops is None:
        return own_roi_align.roi_align(features, strides, regions, output_size, levels)
    result = features[0].new_zeros(len(regions), features[0].shape[1], output_size, output_size)
    for level, (each, stride) in enumerate(zip(features, strides, strict=True)):
        chosen = (levels == level).nonzero()[:, 0]
        # in float32: coordinates of 16 bits would be rounded to whole pixels
        pooled = ops.roi_align(
            each.float(), regions[chosen].float(), output_size, 1 / stride, own_roi_align.SAMPLING_RATIO, aligned=True
        )
        result = result.index_copy(0, chosen, pooled.to(result.dtype))
    return result
