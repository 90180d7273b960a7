"""Images with objects: boxes, labels and masks.

Boxes are x1 y1 x2 y2 in pixels, where the left edge of the first pixel is at 0 and the right edge of the last one at the width.
Masks are COCO run-length encodings (`pycocotools`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.lab.data.image_sources import DecodedImages, ImageSource, Size
from anynorm.lab.data.ragged import Ragged
from anynorm.lab.tasks.detection.data.masks import Mask


class Objects(NamedTuple):
    """The objects of one image.

    Attributes:
        boxes: (n, 4) float32, x1 y1 x2 y2 in pixels.
        labels: (n,) int64, 0 … num_classes − 1.
        masks: one COCO run-length encoding per object; None if the data has no masks.
        is_crowd: (n,) bool, COCO's iscrowd: regions to be ignored in training.
    """

    boxes: Tensor
    labels: Tensor
    masks: tuple[Mask, ...] | None
    is_crowd: Tensor


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
        """Make a sequence of images and their objects; it has masks if the objects of all images have masks.

        Raises:
            DataError: if the numbers of images, sizes and sets of objects differ.
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
        source = DecodedImages.from_tensors(tuple(images))
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
        """Return the images without the masks of their objects."""
        return replace(self, counts=None)


Splits = tuple[list[DetectionImages], tuple[str, ...]]
"""One or two splits (train, then test), and the names of the classes."""
