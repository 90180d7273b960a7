"""Average precision as COCO defines it, computed by pycocotools: AP is the mean over the IoU thresholds 0.5, 0.55 … 0.95.

The metrics are in percent: AP, AP50 and AP75 at one threshold, and AP of objects of less than 32² pixels (small), of more than
96² pixels (large), and between (medium). Sizes without objects are left out.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anynorm.lab.tasks.detection.data.masks import pycocotools_mask
from anynorm.lab.tasks.detection.networks.boxes import box_area

NAMES = ("AP", "AP50", "AP75", "AP small", "AP medium", "AP large")
Annotations = list[dict[str, Any]]
"""The objects or detections of one image as COCO annotations, without the image id."""


def encode_objects(target: Mapping[str, Tensor]) -> Annotations:
    """Return the objects of an image: boxes, labels, is_crowd and possibly masks (n, h, w) of bool."""
    crowds = target["is_crowd"].int().tolist()
    return [{**entry, "iscrowd": crowd} for entry, crowd in zip(_encode(target), crowds, strict=True)]


def encode_detections(detections: Mapping[str, Tensor]) -> Annotations:
    """Return the detections of an image: boxes, labels, scores and possibly masks (k, 1, h, w) in [0, 1], thresholded at 0.5."""
    instances = {**detections, "masks": detections["masks"][:, 0] >= 0.5} if "masks" in detections else detections
    return [{**entry, "score": score} for entry, score in zip(_encode(instances), detections["scores"].tolist(), strict=True)]


def coco_metrics(
    objects: Sequence[Annotations], detections: Sequence[Annotations], num_classes: int, *, masks: bool = False
) -> dict[str, float]:
    """Return the metrics in percent.

    Args:
        objects: the objects of each image, from `encode_objects`.
        detections: the detections in each image, from `encode_detections`.
        num_classes: number of classes.
        masks: whether to compute the IoU of masks instead of boxes.

    >>> box = {"boxes": torch.tensor([[0.0, 0.0, 8.0, 8.0]]), "labels": torch.tensor([0])}
    >>> objects = encode_objects(box | {"is_crowd": torch.tensor([False])})
    >>> coco_metrics([objects], [encode_detections(box | {"scores": torch.tensor([0.5])})], num_classes=1)
    {'AP': 100.0, 'AP50': 100.0, 'AP75': 100.0, 'AP small': 100.0}
    """
    pycocotools_mask()  # a clear message if pycocotools is missing
    from pycocotools.cocoeval import COCOeval

    with redirect_stdout(io.StringIO()):
        expected, detected = (_coco(annotations, num_classes, masks) for annotations in (objects, detections))
        evaluation = COCOeval(expected, detected, "segm" if masks else "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    values = zip(NAMES, evaluation.stats.tolist(), strict=False)
    return {name: round(100 * value, 6) for name, value in values if value >= 0}  # −1: no such object


def _encode(instances: Mapping[str, Tensor]) -> Annotations:
    boxes = instances["boxes"].cpu()
    corners, areas = (
        torch.cat([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1).double().tolist(),
        box_area(boxes).double().tolist(),
    )
    labels = instances["labels"].tolist()
    entries: Annotations = [
        {"bbox": box, "area": area, "category_id": label} for box, area, label in zip(corners, areas, labels, strict=True)
    ]
    if "masks" in instances and entries:
        mask = pycocotools_mask()
        pixels = instances["masks"].cpu().numpy().astype(np.uint8).transpose(1, 2, 0)
        encoded = mask.encode(np.asfortranarray(pixels))
        for entry, segmentation, area in zip(entries, encoded, mask.area(encoded).tolist(), strict=True):
            entry |= {"segmentation": segmentation, "mask_area": float(area)}
    return entries


def _coco(images: Sequence[Annotations], num_classes: int, masks: bool) -> Any:
    """Return a `pycocotools.coco.COCO` of the annotations; the area of an object is that of its mask, if it has one."""
    from pycocotools.coco import COCO

    coco = COCO()
    entries: Annotations = []
    for index, image in enumerate(images):
        for entry in image:
            is_object = "iscrowd" in entry
            area = entry["mask_area"] if "mask_area" in entry and (masks or is_object) else entry["area"]
            entries.append({**entry, "area": area, "iscrowd": entry.get("iscrowd", 0), "image_id": index, "id": len(entries) + 1})
    coco.dataset = {
        "info": {},
        "images": [{"id": index, "height": 0, "width": 0} for index in range(len(images))],  # run-length encodings have the sizes
        "categories": [{"id": label} for label in range(num_classes)],
        "annotations": entries,
    }
    coco.createIndex()
    return coco
