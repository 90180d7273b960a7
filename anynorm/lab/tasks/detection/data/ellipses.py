"""Generated images of ellipses with boxes and masks, from a fixed seed: for tests and first runs of detection.

64 training and 16 test images of 64 × 64 pixels. A textured background has 3 to 10 bright, non-overlapping ellipses of two
classes: `disk` (reddish, round) and `rod` (greenish, 2.5 times as long as wide). Some are cut by the border of the image.
"""

from __future__ import annotations

import numpy as np
import torch

from anynorm.lab.data.ragged import Array
from anynorm.lab.tasks.detection.data.annotations import Annotation, Problems, make_objects
from anynorm.lab.tasks.detection.data.masks import encode_label_map
from anynorm.lab.tasks.detection.data.objects import DetectionImages, Splits

CLASSES = ("disk", "rod")
NUM_IMAGES = (64, 16)
"""Numbers of training and test images."""
SIDE = 64
COLORS = np.array([[210, 130, 120], [130, 210, 130]])
MAX_TRIES = 50
"""Maximum number of attempts to place an ellipse without touching another one."""
MIN_PIXELS = 12
"""Minimum number of pixels of an ellipse inside the image; other ellipses are drawn again."""
_ROWS, _COLUMNS = np.mgrid[:SIDE, :SIDE] + 0.5


def make_ellipses(name: str, problems: Problems) -> Splits:
    """Return the training and the test images, and the names of the classes."""
    return [_make_split(name, seed, count, problems) for seed, count in enumerate(NUM_IMAGES)], CLASSES


def _make_split(name: str, seed: int, count: int, problems: Problems) -> DetectionImages:
    generator, images, objects = np.random.default_rng(seed), [], []
    for index in range(count):
        label_map, labels = _draw_ellipses(generator)
        images.append(torch.from_numpy(_paint(label_map, labels, generator)))
        annotations = [
            Annotation(None, label, mask, is_crowd=False, place=f"{name}, image {index}")
            for label, mask in zip(labels, encode_label_map(label_map), strict=True)
        ]
        objects.append(make_objects(annotations, (SIDE, SIDE), problems))
    return DetectionImages.from_tensors(images, objects)


def _draw_ellipses(generator: np.random.Generator) -> tuple[Array, list[int]]:
    """Return a label map (h, w), in which 0 is background and k + 1 is ellipse k, and the class of each ellipse."""
    label_map, labels = np.zeros((SIDE, SIDE), np.int64), []
    for _ in range(int(generator.integers(3, 11))):
        label = int(generator.integers(2))
        for _ in range(MAX_TRIES):
            ellipse = _ellipse(label, generator)
            if ellipse.sum() >= MIN_PIXELS and not label_map[ellipse].any():
                labels.append(label)
                label_map[ellipse] = len(labels)
                break
    return label_map, labels


def _ellipse(label: int, generator: np.random.Generator) -> Array:
    """Return the mask of an ellipse of a class at a random place."""
    x, y = generator.uniform(2, SIDE - 2, 2)
    angle = generator.uniform(0, np.pi)
    long = generator.uniform(4, 7) if label == 0 else generator.uniform(7, 10)
    short = long if label == 0 else long / 2.5
    along = (_COLUMNS - x) * np.cos(angle) + (_ROWS - y) * np.sin(angle)
    across = (_ROWS - y) * np.cos(angle) - (_COLUMNS - x) * np.sin(angle)
    return np.asarray((along / long) ** 2 + (across / short) ** 2 <= 1)


def _paint(label_map: Array, labels: list[int], generator: np.random.Generator) -> Array:
    """Return uint8 pixels (3, h, w): coarse and fine noise, and ellipses in the colors of their classes."""
    coarse = generator.normal(60, 12, (SIDE // 8, SIDE // 8)).repeat(8, 0).repeat(8, 1)
    pixels = np.broadcast_to(coarse, (3, SIDE, SIDE)).copy()
    for number, label in enumerate(labels, 1):
        pixels[:, label_map == number] = COLORS[label][:, None] * generator.uniform(0.8, 1.1)
    noisy: Array = pixels + generator.normal(0, 8, pixels.shape)
    return np.asarray(noisy.round().clip(0, 255), np.uint8)
