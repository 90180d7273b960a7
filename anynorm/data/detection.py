"""Datasets of images with objects: `cells` (generated) and `nuclei` (an archive under the data directory)."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anynorm.data.download import find_file
from anynorm.errors import DataError


class Objects(NamedTuple):
    """The objects of one image."""

    boxes: Tensor
    labels: Tensor
    masks: tuple[dict[str, Any], ...] | None
    is_crowd: Tensor


class DetectionImages:
    """A sequence of images with objects."""

    def __init__(self, items: list[tuple[Tensor, Objects]]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Tensor, Objects]:
        return self.items[index]


@dataclass(frozen=True)
class DetectionDataset:
    """Training and test images with objects."""

    train: DetectionImages
    test: DetectionImages
    class_names: tuple[str, ...]
    has_masks: bool
    mean: Tensor
    std: Tensor


def load_detection(name: str) -> DetectionDataset:
    """Load a dataset of objects by name."""
    if name == "cells":
        items, classes = [_cells(seed) for seed in range(80)], ("disk", "rod")
        train, test = items[:64], items[64:]
    elif name == "nuclei":
        train, test, classes = *_nuclei(), ("nucleus",)
    else:
        raise DataError(f"unknown dataset of objects: {name!r}.")
    pixels = torch.cat([image.flatten(1) for image, _ in train[:50]], 1) / 255
    mean, std = pixels.mean(1).view(3, 1, 1), pixels.std(1).view(3, 1, 1)
    return DetectionDataset(DetectionImages(train), DetectionImages(test), classes, True, mean, std)


@lru_cache(maxsize=2)
def load_detection_cached(name: str, source_hash: str = "") -> DetectionDataset:  # noqa: ARG001
    """Load a dataset once per process."""
    return load_detection(name)


def _objects(masks: np.ndarray[Any, Any], labels: list[int]) -> Objects:
    from pycocotools import mask as coco

    boxes = []
    for mask in masks:
        y, x = np.nonzero(mask)
        boxes.append([x.min(), y.min(), x.max() + 1, y.max() + 1])
    encoded = tuple(coco.encode(np.asfortranarray(masks.transpose(1, 2, 0).astype(np.uint8)))) if len(masks) else ()
    box = torch.tensor(boxes, dtype=torch.float32).view(-1, 4)
    return Objects(box, torch.tensor(labels, dtype=torch.int64), encoded, torch.zeros(len(box), dtype=torch.bool))


def _cells(seed: int) -> tuple[Tensor, Objects]:
    random = np.random.default_rng(seed)
    image = random.normal(60, 12, (3, 64, 64))
    y, x = np.mgrid[:64, :64]
    masks, labels = [], []
    for _ in range(random.integers(2, 6)):
        label = int(random.integers(2))
        a, b = (random.uniform(4, 8),) * 2 if label == 0 else (random.uniform(8, 12), random.uniform(2, 3.5))
        angle, cy, cx = random.uniform(0, np.pi), random.uniform(8, 56), random.uniform(8, 56)
        u, v = (x - cx) * np.cos(angle) + (y - cy) * np.sin(angle), (y - cy) * np.cos(angle) - (x - cx) * np.sin(angle)
        mask = (u / a) ** 2 + (v / b) ** 2 <= 1
        if mask.any() and not any((mask & other).any() for other in masks):
            masks.append(mask)
            labels.append(label)
            image[:, mask] += random.uniform(60, 120)
    return torch.from_numpy(image.clip(0, 255)).to(torch.uint8), _objects(np.array(masks).reshape(-1, 64, 64), labels)


def _nuclei() -> tuple[list[tuple[Tensor, Objects]], list[tuple[Tensor, Objects]]]:
    from PIL import Image

    arrays = np.load(find_file("nuclei/nuclei_dsb2018.npz"))
    arrays = {name: arrays[name] for name in ("images", "offsets", "labels", "shapes", "split")}
    start, splits = 0, ([], [])
    for number, (height, width) in enumerate(arrays["shapes"].astype(int)):
        label_map = arrays["labels"][start : start + height * width].reshape(height, width)
        start += height * width
        data = arrays["images"][arrays["offsets"][number] : arrays["offsets"][number + 1]].tobytes()
        image = torch.from_numpy(np.array(Image.open(io.BytesIO(data)).convert("RGB"))).permute(2, 0, 1).contiguous()
        values = [value for value in np.unique(label_map) if value]
        masks = np.stack([label_map == value for value in values]) if values else np.zeros((0, height, width), bool)
        splits[int(arrays["split"][number] > 0)].append((image, _objects(masks, [0] * len(values))))
    return splits
