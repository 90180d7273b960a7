"""Objects and detections drawn on images."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

MIN_SIDE = 256
"""Smaller images are enlarged to about this many pixels, so that boxes can be distinguished."""
MIN_SCORE = 0.5
"""Smallest score of a detection that is drawn."""


def draw_instances(image: Tensor, instances: Mapping[str, Tensor], num_classes: int) -> Tensor:
    """Return an image with boxes and masks in the color of their class.

    Args:
        image: (3, h, w) of uint8.
        instances: boxes and labels; possibly scores, of which those of at least ½ are drawn, and masks (n, h, w) or (n, 1, h, w).
        num_classes: number of classes.
    """
    from PIL import Image, ImageDraw

    if "scores" in instances:
        chosen = instances["scores"] >= MIN_SCORE
        instances = {name: value[chosen] for name, value in instances.items()}
    pixels = image.cpu().permute(1, 2, 0).float()
    colors = [_color(label, num_classes) for label in instances["labels"].tolist()]
    masks = instances["masks"].flatten(0, -3).unbind() if "masks" in instances and colors else ()
    for mask, color in zip(masks, colors, strict=False):
        inside = mask.cpu() >= 0.5
        pixels[inside] = 0.6 * pixels[inside] + 0.4 * torch.tensor(color, dtype=torch.float32)
    scale = max(1, MIN_SIDE // max(image.shape[1:]))
    magnified = pixels.to(torch.uint8).repeat_interleave(scale, 0).repeat_interleave(scale, 1)
    picture = Image.fromarray(magnified.numpy())
    draw = ImageDraw.Draw(picture)
    for box, color in zip((instances["boxes"].cpu() * scale).tolist(), colors, strict=True):
        draw.rectangle([box[0], box[1], max(box[2] - 1, box[0]), max(box[3] - 1, box[1])], outline=color)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def _color(label: int, num_classes: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(label / num_classes, 0.9, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)
