"""Images and their objects, cropped to a window and flipped.

Boxes are clipped to the crop. An object is dropped if less than `MIN_VISIBLE` of its box, or nothing of its mask, is left.
An image smaller than the crop is padded at the right and the bottom with the mean color, which is 0 after standardization.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from anynorm.errors import DataError
from anynorm.lab.data.windows import Window
from anynorm.lab.tasks.detection.data.datasets import DetectionDataset, Objects
from anynorm.lab.tasks.detection.data.masks import pycocotools_mask
from anynorm.lab.tasks.detection.networks.boxes import box_area, clip_boxes, is_large

MIN_VISIBLE = 0.1
"""Minimum fraction of the area of a box inside the crop."""


def crop_image(image: Tensor, window: Window, data: DetectionDataset) -> Tensor:
    """Return a window of an image (c, h, w) of uint8, standardized."""
    return (window.crop(image).float() / 255 - data.mean.view(-1, 1, 1)) / data.std.view(-1, 1, 1)


def pad_image(image: Tensor, size: int) -> Tensor:
    """Return an image or masks (c, h, w) padded with zeros at the right and the bottom to at least `size` pixels."""
    return pad(image, (0, max(size - image.shape[2], 0), 0, max(size - image.shape[1], 0)))


def crop_objects(objects: Objects, window: Window, *, with_masks: bool) -> dict[str, Tensor]:
    """Return the objects in a window as detector targets: boxes, labels, is_crowd and possibly masks (n, h, w) of bool."""
    top, left, height, width = window
    boxes = clip_boxes(objects.boxes - torch.tensor([left, top, left, top], dtype=objects.boxes.dtype), height, width)
    kept = is_large(boxes, 1.0) & (box_area(boxes) >= MIN_VISIBLE * box_area(objects.boxes))
    target = {"boxes": boxes[kept], "labels": objects.labels[kept], "is_crowd": objects.is_crowd[kept]}
    if with_masks:
        target["masks"] = _decode(objects.masks, kept.nonzero()[:, 0].tolist(), window)
        visible = target["masks"].flatten(1).any(1)
        target = {name: value[visible] for name, value in target.items()}
    return target


def flip(image: Tensor, target: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return an image (c, h, w) and its objects flipped horizontally."""
    x1, y1, x2, y2 = target["boxes"].unbind(1)
    width = image.shape[2]
    flipped = {**target, "boxes": torch.stack([width - x2, y1, width - x1, y2], 1)}
    if "masks" in target:
        flipped["masks"] = target["masks"].flip(2)
    return image.flip(2), flipped


def without_crowds(target: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the objects that a detector is trained on: those that are not crowds."""
    kept = ~target["is_crowd"]
    return {name: value[kept] for name, value in target.items() if name != "is_crowd"}


def _decode(masks: tuple[dict[str, Any], ...] | None, indices: list[int], window: Window) -> Tensor:
    """Decode some masks inside a window, as (n, height, width) of bool."""
    if masks is None:
        raise DataError("masks were asked for; the objects of the data set have none.")
    if not indices:
        return torch.zeros(0, window.height, window.width, dtype=torch.bool)
    decoded = torch.from_numpy(pycocotools_mask().decode([masks[index] for index in indices]))
    return window.crop(decoded.permute(2, 0, 1)).bool().contiguous()
