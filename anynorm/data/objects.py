"""Images with objects: boxes, labels and masks.

Boxes are x1 y1 x2 y2 in pixels, where the left edge of the first pixel is at 0 and the right edge of the last one at the width.
Masks are run-length encodings of COCO (`pycocotools`). `Problems` collects problems of annotations for one warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from anynorm.data.image_sources import DecodedImages, ImageSource, Ragged, Size
from anynorm.data.object_masks import Mask, mask_box
from anynorm.errors import DataError

TOLERANCE = 1.0
"""Boxes that reach at most this many pixels beyond the image are clipped without a warning: coordinates are often rounded."""
NUM_EXAMPLES = 3


class Objects(NamedTuple):
    """The objects of one image.

    Attributes:
        boxes: (n, 4) float32, x1 y1 x2 y2 in pixels.
        labels: (n,) int64, 0 … num_classes − 1.
        masks: one run-length encoding of COCO per object; None if the data has no masks.
        is_crowd: (n,) bool, COCO's iscrowd: regions to be ignored in training.
    """

    boxes: Tensor
    labels: Tensor
    masks: tuple[Mask, ...] | None
    is_crowd: Tensor


@dataclass
class Problems:
    """What is wrong with annotations: the places where each kind of problem occurs."""

    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, example: str) -> None:
        """Add a problem. `kind` is a phrase after a number: "boxes reach beyond their image and were clipped"."""
        self.examples.setdefault(kind, []).append(example)

    def warn(self, name: str) -> None:
        """Report all problems of a data set in one warning, with their numbers and the first examples."""
        if self.examples:
            parts = [f"{len(examples)} {kind} ({_listed(examples)})" for kind, examples in self.examples.items()]
            warnings.warn(f"{name}: {'; '.join(parts)}.", stacklevel=3)


def _listed(examples: list[str]) -> str:
    return ", ".join(examples[:NUM_EXAMPLES]) + (", …" if len(examples) > NUM_EXAMPLES else "")


class Annotation(NamedTuple):
    """One object as a reader has found it.

    Attributes:
        box: x1 y1 x2 y2; None for that of the mask.
        label: the number of the class.
        mask: a run-length encoding; None if the data has none.
        is_crowd: see `Objects`.
        place: where the annotation is, for messages.
    """

    box: Sequence[float] | None
    label: int
    mask: Mask | None
    is_crowd: bool
    place: str


def make_objects(annotations: Sequence[Annotation], size: Size, problems: Problems) -> Objects:
    """Return the objects of an image: boxes are clipped to the image, and those without an area are left out.

    Args:
        annotations: the objects; either all of them have masks or none has.
        size: height and width of the image.
        problems: gets the objects that were changed or left out.

    Raises:
        DataError: if a box is not finite, or a mask has another size than the image.
    """
    boxes, kept = [], []
    limits = np.array([size[1], size[0]] * 2, np.float64)
    for annotation in annotations:
        if annotation.mask is not None and tuple(annotation.mask["size"]) != size:
            height, width = annotation.mask["size"]
            raise DataError(
                f"{annotation.place}: the mask must have the {size[1]} × {size[0]} pixels of its image; got {width} × {height}."
            )
        box = np.asarray(mask_box(annotation.mask) if annotation.box is None else annotation.box, np.float64)
        if box.shape != (4,) or not np.isfinite(box).all():
            raise DataError(f"{annotation.place}: a box must have 4 finite numbers; got {box.tolist()}.")
        clipped = box.clip(0, limits)
        if (clipped[2:] <= clipped[:2]).any():
            is_outside = (box[2:] > box[:2]).all()
            kind = "objects are outside of their image" if is_outside else "objects have a size of zero"
            problems.add(f"{kind} and were left out", annotation.place)
            continue
        if (abs(clipped - box) > TOLERANCE).any():
            problems.add("boxes reach beyond their image and were clipped", annotation.place)
        boxes.append(clipped)
        kept.append(annotation)
    return Objects(
        torch.from_numpy(np.array(boxes, np.float32).reshape(-1, 4)),
        torch.tensor([annotation.label for annotation in kept], dtype=torch.int64),
        None if any(each.mask is None for each in kept) else tuple(each.mask for each in kept if each.mask is not None),
        torch.tensor([annotation.is_crowd for annotation in kept], dtype=torch.bool),
    )


@dataclass(frozen=True, eq=False)
class DetectionImages:
    """A sequence of images of different sizes, and their objects: `images[i]` is (uint8 (3, h, w), `Objects`).

    Attributes:
        source: the images; files are decoded when they are used.
        sizes: height and width of each image, (n, 2).
        boxes: boxes per image; see `Objects`.
        labels: labels per image.
        is_crowd: whether objects are crowds, per image.
        counts: the run-length encoding of each object of all images; None without masks.
    """

    source: ImageSource
    sizes: npt.NDArray[np.int64]
    boxes: Ragged
    labels: Ragged
    is_crowd: Ragged
    counts: Ragged | None

    @classmethod
    def from_objects(cls, source: ImageSource, sizes: Sequence[Size], objects: Sequence[Objects]) -> DetectionImages:
        """Return images with their objects, which have masks if those of all images have.

        Raises:
            DataError: if there is not one size and one set of objects per image.
        """
        if not len(source) == len(sizes) == len(objects):
            raise DataError(f"there must be objects for each of {len(source)} images; got {len(objects)}.")
        masks = [each.masks for each in objects]
        encoded = [mask["counts"] for row in masks if row is not None for mask in row]
        has_masks = all(row is not None for row in masks)
        return cls(
            source,
            np.array(sizes, np.int64).reshape(-1, 2),
            Ragged.from_rows([each.boxes.numpy() for each in objects], np.empty((0, 4), np.float32)),
            Ragged.from_rows([each.labels.numpy() for each in objects], np.empty(0, np.int64)),
            Ragged.from_rows([each.is_crowd.numpy() for each in objects], np.empty(0, np.bool_)),
            Ragged.from_rows([np.frombuffer(each, np.uint8) for each in encoded], np.empty(0, np.uint8)) if has_masks else None,
        )

    @classmethod
    def from_tensors(cls, images: Sequence[Tensor], objects: Sequence[Objects]) -> DetectionImages:
        """Return images in memory, uint8 (3, h, w), with their objects."""
        source = DecodedImages(tuple(images))
        return cls.from_objects(source, [source.size(index) for index in range(len(source))], objects)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> tuple[Tensor, Objects]:
        number = self._number(index)
        return self.source.read(number, self.size(number)), self.objects(number)

    def __iter__(self) -> Iterator[tuple[Tensor, Objects]]:
        return (self[index] for index in range(len(self)))

    def _number(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be below {len(self)}; got {index}.")
        return int(index) % len(self)

    def size(self, index: int) -> Size:
        """Return height and width of an image, without decoding it."""
        height, width = self.sizes[self._number(index)].tolist()
        return height, width

    def objects(self, index: int) -> Objects:
        """Return the objects of an image, without decoding it."""
        number, masks = self._number(index), None
        if self.counts is not None:
            first, last = self.boxes.offsets[number : number + 2].tolist()
            size = list(self.size(number))
            masks = tuple({"size": size, "counts": self.counts[k].tobytes()} for k in range(first, last))
        boxes, labels, is_crowd = (torch.tensor(each[number]) for each in (self.boxes, self.labels, self.is_crowd))
        return Objects(boxes, labels, masks, is_crowd)

    @property
    def num_objects(self) -> int:
        """The number of objects of all images."""
        return len(self.labels.values)

    def select(self, indices: Sequence[int] | Tensor) -> DetectionImages:
        """Return some of the images, with their objects, in the order of the indices."""
        chosen = np.asarray(indices, dtype=np.int64).tolist()
        numbers = Ragged(np.arange(self.num_objects), self.boxes.offsets).select(chosen)
        return DetectionImages(
            self.source.select(chosen),
            self.sizes[chosen].reshape(-1, 2),
            self.boxes.select(chosen),
            self.labels.select(chosen),
            self.is_crowd.select(chosen),
            None if self.counts is None else self.counts.select(numbers.values),
        )

    def without_masks(self) -> DetectionImages:
        """Return the images with boxes alone."""
        return replace(self, counts=None)
