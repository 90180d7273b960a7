"""Masks of objects as COCO run-length encodings (`pycocotools`), from pixels, polygons and label maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anynorm.errors import DataError
from anynorm.lab.data.image_sources import Size
from anynorm.lab.data.ragged import Array

Mask = dict[str, Any]
"""A COCO run-length encoding: `size` (h, w), and `counts` as bytes."""


def pycocotools_mask() -> Any:
    """Import pycocotools at first use: it is part of the `lab` extra."""
    try:
        from pycocotools import mask
    except ImportError:
        raise DataError("masks of objects need pycocotools: pip install 'anynorm[lab]'.") from None
    return mask


def encode_mask(mask: Array) -> Mask:
    """Return the run-length encoding of a mask (h, w), whose nonzero pixels belong to the object."""
    encoded: Mask = pycocotools_mask().encode(np.asfortranarray(mask != 0, dtype=np.uint8))
    return encoded


def encode_polygons(polygons: Sequence[Sequence[float]], size: Size) -> Mask:
    """Return the mask of polygons x1 y1 x2 y2 …, each of at least 3 points, for an image of the given size."""
    library = pycocotools_mask()
    merged: Mask = library.merge(library.frPyObjects([list(polygon) for polygon in polygons], *size))
    return merged


def encode_label_map(label_map: Array) -> list[Mask]:
    """Return the masks of the objects 1, 2, … of a label map (h, w) that occur in it, in this order; 0 is background.

    Equal to `encode_mask(label_map == k)` for each k, but in one pass over the pixels.
    """
    library, size = pycocotools_mask(), [int(side) for side in label_map.shape]
    flat = label_map.ravel(order="F")
    starts = np.concatenate([[0], np.flatnonzero(flat[1:] != flat[:-1]) + 1])
    stops, values = np.append(starts[1:], flat.size), flat[starts]
    order = np.argsort(values, kind="stable")
    runs = np.stack([starts, stops], 1)[order]
    labels, firsts = np.unique(values[order], return_index=True)
    masks = []
    for label, own in zip(labels, np.split(runs, firsts[1:]), strict=True):
        if label:
            edges = [0, *own.ravel().tolist()] + ([flat.size] if own[-1, 1] < flat.size else [])
            masks.append(library.frPyObjects({"size": size, "counts": np.diff(edges).tolist()}, *size))
    return masks


def mask_box(mask: Mask | None) -> list[float]:
    """Return the box x1 y1 x2 y2 of the pixels of a mask."""
    x, y, width, height = pycocotools_mask().toBbox(mask)
    return [x, y, x + width, y + height]
