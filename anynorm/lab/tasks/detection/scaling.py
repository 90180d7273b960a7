"""Whole images, scaled to a length of their shorter side as in published COCO settings, and their objects.

    scale = min(short_side / shorter side, max_side / longer side)         height, width ← round(scale · height, scale · width)

Images are interpolated bilinearly, averaged over the source pixels where they shrink (antialiasing). Because sizes are rounded,
the two axes of an image have slightly different scales; boxes are scaled by those of the pixels. Masks are interpolated as images
are, and thresholded at 0.5. Detections are mapped back to the pixels of the original image, so that metrics do not depend on the
scale.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from anynorm.lab.tasks.detection.networks.boxes import is_large

MAX_VALUES = 1 << 24
"""Maximum number of mask values to resize at a time (64 MB)."""
Size = tuple[int, int]
"""Height and width in pixels."""


def scaled_size(size: Size, short_side: int, max_side: int) -> Size:
    """Return the size of an image whose shorter side gets `short_side` pixels, or fewer if the longer one got over `max_side`.

    >>> scaled_size((480, 640), short_side=800, max_side=1333)
    (800, 1067)
    >>> scaled_size((480, 960), short_side=800, max_side=1333)
    (667, 1333)
    """
    scale = min(short_side / min(size), max_side / max(size))
    height, width = (max(1, int(scale * length + 0.5)) for length in size)
    return height, width


def resize(images: Tensor, size: Size) -> Tensor:
    """Return images (n, h, w) of uint8 or float interpolated bilinearly, with antialiasing."""
    if not len(images) or tuple(images.shape[1:]) == size:
        return images.new_zeros(0, *size) if not len(images) else images
    chunks = images.split(max(1, MAX_VALUES // max(size[0] * size[1], images[:1].numel())))  # type: ignore[no-untyped-call]
    return torch.cat([interpolate(each[None], size, mode="bilinear", antialias=True)[0] for each in chunks])


def scale_boxes(boxes: Tensor, source: Size, target: Size) -> Tensor:
    """Return boxes (n, 4) of an image of one size in the pixels of another.

    >>> scale_boxes(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), (10, 10), (20, 30))
    tensor([[3., 4., 9., 8.]])
    """
    y, x = (new / old for new, old in zip(target, source, strict=True))
    return boxes * boxes.new_tensor([x, y, x, y])


def scale_objects(objects: Mapping[str, Tensor], source: Size, target: Size) -> dict[str, Tensor]:
    """Return the objects of an image of one size in the pixels of another.

    Objects whose box is smaller than one pixel, or whose mask is empty, are dropped.

    Args:
        objects: boxes (n, 4), possibly masks (n, h, w) of bool, and other tensors of length n.
        source: size of the image that they belong to.
        target: size of the resized image.
    """
    scaled = {**objects, "boxes": scale_boxes(objects["boxes"], source, target)}
    kept = is_large(scaled["boxes"], 1.0)
    if "masks" in objects:
        scaled["masks"] = resize(objects["masks"].float(), target) >= 0.5
        kept = kept & scaled["masks"].flatten(1).any(1)
    return {name: value[kept] for name, value in scaled.items()}


def scale_detections(detections: Mapping[str, Tensor], source: Size, target: Size) -> dict[str, Tensor]:
    """Return the detections of an image of one size in the pixels of another.

    Args:
        detections: boxes (k, 4), possibly probabilities of masks (k, 1, h, w), and other tensors of length k.
        source: size of the image that they were detected in.
        target: size of the original image.
    """
    scaled = {**detections, "boxes": scale_boxes(detections["boxes"], source, target)}
    if "masks" in detections:
        scaled["masks"] = resize(detections["masks"][:, 0], target)[:, None]
    return scaled
