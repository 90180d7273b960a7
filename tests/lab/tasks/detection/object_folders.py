"""The same images and objects as folders in the forms of COCO, PASCAL VOC, YOLO, and one mask per object; written naively."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

CLASSES = ("ant", "bee", "cat")
COCO_IDS = (3, 17, 90)
"""Category ids with gaps."""


class Sample(NamedTuple):
    name: str
    pixels: Any
    """uint8 (h, w, c) or (h, w), or uint16 (h, w)."""
    objects: list[tuple[int, tuple[int, int, int, int]]]
    """Label and x1 y1 x2 y2 of rectangles."""


def make_samples() -> dict[str, list[Sample]]:
    """Return RGB, gray and RGBA images; the third one has no objects."""
    generator = np.random.default_rng(0)

    def pixels(*shape):
        return generator.integers(0, 256, shape).astype(np.uint8)

    first = Sample("a", pixels(20, 30, 3), [(0, (0, 0, 30, 20)), (2, (3, 4, 11, 9))])
    second = Sample("b", pixels(24, 16), [(1, (7, 5, 16, 24))])
    third = Sample("c", pixels(10, 12, 4), [])
    return {"train": [first, second, third], "test": [Sample("d", pixels(18, 14, 3), [(1, (1, 2, 3, 4)), (0, (5, 5, 14, 18))])]}


def save(pixels: Any, path: Path, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def size_of(sample: Sample) -> tuple[int, int]:
    height, width = sample.pixels.shape[:2]
    return height, width


def write_coco(root: Path, splits: dict[str, list[Sample]]) -> None:
    for split, samples in splits.items():
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for number, sample in enumerate(samples):
            height, width = size_of(sample)
            save(sample.pixels, root / f"{split}2017" / f"{sample.name}.png")
            images.append({"id": 100 - number, "file_name": f"{sample.name}.png", "height": height, "width": width})
            for label, (x1, y1, x2, y2) in sample.objects:
                annotations.append(
                    {
                        "id": len(annotations),
                        "image_id": 100 - number,
                        "category_id": COCO_IDS[label],
                        "bbox": [x1, y1, x2 - x1, y2 - y1],
                        "segmentation": [[x1, y1, x2, y1, x2, y2, x1, y2]],
                        "iscrowd": 0,
                    }
                )
        categories = [{"id": number, "name": name} for number, name in zip(COCO_IDS, CLASSES, strict=True)][::-1]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (root / "annotations").mkdir(exist_ok=True)
        (root / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))


def write_voc(root: Path, splits: dict[str, list[Sample]]) -> None:
    for folder in ("Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for split, samples in splits.items():
        listed = {"train": "trainval"}.get(split, split)
        (root / "ImageSets" / "Main" / f"{listed}.txt").write_text("".join(f"{sample.name}\n" for sample in samples))
        for sample in samples:
            height, width = size_of(sample)
            save(sample.pixels, root / "JPEGImages" / f"{sample.name}.png")
            objects = "".join(
                f"<object><name>{CLASSES[label]}</name><bndbox><xmin>{x1 + 1}</xmin><ymin>{y1 + 1}</ymin><xmax>{x2}</xmax>"
                f"<ymax>{y2}</ymax></bndbox></object>"
                for label, (x1, y1, x2, y2) in sample.objects
            )
            size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
            (root / "Annotations" / f"{sample.name}.xml").write_text(f"<annotation>{size}{objects}</annotation>")


def write_yolo(root: Path, splits: dict[str, list[Sample]], *, polygons: bool = False) -> None:
    for split, samples in splits.items():
        for sample in samples:
            height, width = size_of(sample)
            save(sample.pixels, root / "images" / split / f"{sample.name}.png")
            (root / "labels" / split).mkdir(parents=True, exist_ok=True)
            lines = []
            for label, (x1, y1, x2, y2) in sample.objects:
                box = (x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height
                corners = [(x / width, y / height) for x, y in ((x1, y1), (x2, y1), (x2, y2), (x1, y2))]
                values = [value for corner in corners for value in corner] if polygons else box
                lines.append(" ".join([str(label), *(f"{value:.6f}" for value in values)]))
            (root / "labels" / split / f"{sample.name}.txt").write_text("\n".join(lines))
    (root / "data.yaml").write_text(f"train: images/train\nnc: 3\nnames: ['ant', \"bee\", cat]  # {len(CLASSES)}\n")


def write_masks(root: Path, splits: dict[str, list[Sample]]) -> None:
    for split, samples in splits.items():
        for sample in samples:
            save(sample.pixels, root / split / sample.name / "images" / f"{sample.name}.png")
            (root / split / sample.name / "masks").mkdir()
            for number, (_, (x1, y1, x2, y2)) in enumerate(sample.objects):
                mask = np.zeros(size_of(sample), np.uint8)
                mask[y1:y2, x1:x2] = 255
                save(mask, root / split / sample.name / "masks" / f"{number}.png")


WRITERS = {"coco": write_coco, "voc": write_voc, "yolo": write_yolo, "masks": write_masks}
