"""Conversion of annotations to objects: boxes are clipped to the image, and problems are collected.

No annotation is changed or left out silently: `Problems` collects all of them and reports them in one warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from anynorm.errors import DataError
from anynorm.lab.data.image_sources import ImageSource, Size
from anynorm.lab.data.ragged import Array
from anynorm.lab.tasks.detection.data.masks import Mask, mask_box
from anynorm.lab.tasks.detection.data.objects import DetectionImages, Objects

TOLERANCE = 1.0
"""Boxes that reach at most this many pixels beyond the image are clipped without a warning: coordinates are often rounded."""
NUM_EXAMPLES = 3


@dataclass
class Problems:
    """Problems of annotations: the places where each kind of problem occurs."""

    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, example: str) -> None:
        """Add a problem. `kind` is a phrase that follows a count: "boxes reach beyond their image and were clipped"."""
        self.examples.setdefault(kind, []).append(example)

    def warn(self, name: str) -> None:
        """Report all problems of a data set in one warning, with counts and the first examples."""
        if self.examples:
            parts = [f"{len(examples)} {kind} ({_listed(examples)})" for kind, examples in self.examples.items()]
            warnings.warn(f"{name}: {'; '.join(parts)}.", stacklevel=3)


def _listed(examples: list[str]) -> str:
    return ", ".join(examples[:NUM_EXAMPLES]) + (", …" if len(examples) > NUM_EXAMPLES else "")


class Annotation(NamedTuple):
    """One object as it is annotated in a file.

    Attributes:
        box: x1 y1 x2 y2; None to use the box of the mask.
        label: index of the class.
        mask: a run-length encoding; None without a mask.
        is_crowd: see `Objects`.
        place: where the annotation is, for messages.
    """

    box: Sequence[float] | None
    label: int
    mask: Mask | None
    is_crowd: bool
    place: str


class AnnotatedImages(NamedTuple):
    """The images of a split, their heights and widths, and their annotations."""

    source: ImageSource
    sizes: list[Size]
    annotations: list[list[Annotation]]


def make_splits(splits: Sequence[AnnotatedImages], problems: Problems) -> list[DetectionImages]:
    """Return the images of each split with their objects; see `make_objects`.

    If some objects have no mask, all masks are left out.
    """
    annotations = [each for split in splits for row in split.annotations for each in row]
    without = [each for each in annotations if each.mask is None]
    if 0 < len(without) < len(annotations):
        for annotation in without:
            problems.add("objects have no mask, so that the masks of all others were left out", annotation.place)
    return [
        DetectionImages.from_objects(
            split.source,
            split.sizes,
            [make_objects(row, size, problems) for row, size in zip(split.annotations, split.sizes, strict=True)],
        )
        for split in splits
    ]


def make_objects(annotations: Sequence[Annotation], size: Size, problems: Problems) -> Objects:
    """Return the objects of an image: boxes are clipped to the image, and those without an area are left out.

    Args:
        annotations: the objects; either all of them have masks or none has.
        size: height and width of the image.
        problems: collects the objects that are changed or left out.

    Raises:
        DataError: if a box is not finite, or the size of a mask is not that of the image.
    """
    for annotation in annotations:
        if annotation.mask is not None and tuple(annotation.mask["size"]) != size:
            height, width = annotation.mask["size"]
            raise DataError(
                f"{annotation.place}: the mask must have the {size[1]} × {size[0]} pixels of its image; got {width} × {height}."
            )
    rows = [mask_box(each.mask) if each.box is None else each.box for each in annotations]
    boxes = np.array(rows, np.float64).reshape(-1, 4)
    clipped = boxes.clip(0, np.array([size[1], size[0]] * 2))
    is_kept, has_area, is_finite = _has_area(clipped), _has_area(boxes), np.asarray(np.isfinite(boxes).all(axis=1))
    is_changed = np.asarray((abs(clipped - boxes) > TOLERANCE).any(axis=1))
    for index in np.flatnonzero(~is_kept | is_changed | ~is_finite).tolist():
        place = annotations[index].place
        if not is_finite[index]:
            raise DataError(f"{place}: a box must have 4 finite numbers; got {boxes[index].tolist()}.")
        if is_kept[index]:
            problems.add("boxes reach beyond their image and were clipped", place)
        else:
            kind = "objects are outside of their image" if has_area[index] else "objects have a size of zero"
            problems.add(f"{kind} and were left out", place)
    kept = [annotations[index] for index in np.flatnonzero(is_kept).tolist()]
    masks = tuple(each.mask for each in kept if each.mask is not None)
    return Objects(
        torch.from_numpy(clipped[is_kept].astype(np.float32)),
        torch.tensor([each.label for each in kept], dtype=torch.int64),
        masks if len(masks) == len(kept) else None,
        torch.tensor([each.is_crowd for each in kept], dtype=torch.bool),
    )


def _has_area(boxes: Array) -> Array:
    return np.asarray((boxes[:, 2:] > boxes[:, :2]).all(axis=1))
