"""Pictures of segmentations: images beside their labels and predictions, one color per class."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import torch
from torch import Tensor

from anynorm.io.pictures import encode_png, image_grid
from anynorm.lab.tasks.segmentation.masks import IGNORED, Sample

GOLDEN = 0.618034
"""Fraction of the color circle between two classes: neighbors differ, and no two of many classes are close."""


def class_colors(num_classes: int) -> Tensor:
    """Return uint8 colors (256, 3) by label: dark blue for class 0, white for ignored pixels and labels without a class.

    >>> class_colors(2)[[0, 1, 255]].tolist()
    [[38, 38, 64], [230, 69, 116], [255, 255, 255]]
    """
    colors = torch.full((256, 3), 255, dtype=torch.uint8)
    for label in range(num_classes):
        hue, value = GOLDEN * label + 1 / 3, 0.9 if label % 2 else 0.7
        rgb = colorsys.hsv_to_rgb(hue % 1, 0.7, value) if label else (0.15, 0.15, 0.25)
        colors[label] = torch.tensor([round(255 * part) for part in rgb], dtype=torch.uint8)
    return colors


def color_labels(labels: Tensor, num_classes: int) -> Tensor:
    """Return labels (h, w) as a uint8 picture (3, h, w)."""
    return class_colors(num_classes)[labels.long()].permute(2, 0, 1)


def encode_predictions(samples: Sequence[Sample], predictions: Sequence[Tensor], num_classes: int) -> bytes:
    """Return a PNG file with one row per image: the image, its labels, and the prediction, white where labels are ignored."""
    height, width = (max(labels.shape[dim] for _, labels in samples) for dim in (0, 1))
    tiles = []
    for (image, labels), prediction in zip(samples, predictions, strict=True):
        shown = torch.where(labels == IGNORED, IGNORED, prediction)
        for tile in (image, color_labels(labels, num_classes), color_labels(shown, num_classes)):
            missing = (0, width - tile.shape[2], 0, height - tile.shape[1])
            tiles.append(torch.nn.functional.pad(tile, missing, value=255))
    return encode_png(image_grid(torch.stack(tiles), columns=3, padding=2))
