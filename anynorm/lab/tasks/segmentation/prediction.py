"""Predictions of a segmentation network for whole images.

An image is padded at the right and at the bottom to a multiple of the stride of the features, so that these lie on a regular grid
of the image, and the logits are cropped again. Multi-scale prediction averages the probabilities of scaled and flipped images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anynorm.lab.tasks.segmentation.networks import resize
from anynorm.lab.tasks.segmentation.transforms import scaled_size


def predict_logits(network: Any, x: Tensor, size: Sequence[int]) -> Tensor:
    """Return logits of standardized images (n, 3, h, w), resized to a height and width.

    Args:
        network: a `SegmentationNetwork` in eval mode.
        x: the images.
        size: height and width of the labels.
    """
    height, width = x.shape[-2:]
    stride = network.stride
    padded = torch.nn.functional.pad(x, (0, -width % stride, 0, -height % stride))
    logits = network(padded).float()[..., :height, :width]
    return resize(logits, size)


def average_probabilities(network: Any, x: Tensor, size: Sequence[int], scales: Sequence[float], *, flip: bool) -> Tensor:
    """Return the probabilities of classes, averaged over scales of the images, and over flips of each.

    Args:
        network: a `SegmentationNetwork` in eval mode.
        x: standardized images (n, 3, h, w).
        size: height and width of the labels.
        scales: factors of the images' height and width.
        flip: whether each scaled image is flipped horizontally too.
    """
    total, count = torch.zeros(()), 0
    for scale in scales:
        scaled = resize(x, scaled_size(x.shape[-2:], 0, scale))
        for is_flipped in (False, True) if flip else (False,):
            probabilities = predict_logits(network, scaled.flip(-1) if is_flipped else scaled, size).softmax(1)
            total, count = total + (probabilities.flip(-1) if is_flipped else probabilities), count + 1
    return total / count
