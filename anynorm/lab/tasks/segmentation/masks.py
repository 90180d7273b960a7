"""Images with masks of class labels: pairs of files, and lookup tables from the values of masks to classes.

A lookup table maps the values of a mask to classes from 0, to `IGNORED`, or to −1 for a value that is not allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.io.inputs import IMAGE_SUFFIXES
from anynorm.lab.data.image_sources import read_image

IGNORED = 255
"""The label of pixels without a class, which are excluded from the loss and the metrics."""
Sample = tuple[Tensor, Tensor]
"""A uint8 image (3, h, w) and uint8 labels (h, w)."""
Lookup = npt.NDArray[np.int16]


def make_lookup(classes: dict[int, int], ignored: Sequence[int] = ()) -> Lookup:
    """Return a lookup table of 256 entries.

    Args:
        classes: maps values of a mask to classes.
        ignored: values that are mapped to `IGNORED`.

    >>> make_lookup({0: 0, 7: 1}, [255])[[0, 7, 255, 3]].tolist()
    [0, 1, 255, -1]
    """
    table = np.full(256, -1, np.int16)
    table[list(classes)] = list(classes.values())
    table[list(ignored)] = IGNORED
    return table


def apply_lookup(mask: npt.NDArray[Any], lookup: Lookup, name: str) -> Tensor:
    """Map the values of a mask to labels.

    Raises:
        DataError: if the mask has a value that is not allowed.
    """
    in_range = mask.ndim == 2 and mask.dtype.kind in "ui" and (not mask.size or int(mask.max()) < len(lookup))
    labels = lookup[mask] if in_range else np.array(-1)
    if labels.min(initial=0) < 0:
        wrong = np.unique(mask[labels < 0] if in_range else mask)[-1]
        usable = np.flatnonzero(lookup >= 0)
        raise DataError(
            f"a mask must have one value per pixel, a class ({usable.min()} to {usable.max()}, {len(usable)} values in all); "
            f"got {wrong} in {name}, of shape {mask.shape}."
        )
    return torch.from_numpy(labels.astype(np.uint8))


@dataclass(frozen=True, eq=False)
class MaskFiles(Sequence[Sample]):
    """Image files and mask files, decoded when they are used.

    Attributes:
        images: the image files.
        masks: the mask of each.
        lookup: maps the values of a mask to classes.
    """

    images: list[Path]
    masks: list[Path]
    lookup: Lookup

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> Any:
        """Return an image and its labels, or a subset for a slice."""
        if isinstance(index, slice):
            return MaskFiles(self.images[index], self.masks[index], self.lookup)
        # masks have the orientation of the stored pixels
        return read_image(self.images[index], apply_exif=False), self.labels(index)

    def size(self, index: int) -> tuple[int, int]:
        """Return height and width of an image from the header of its file."""
        from PIL import Image

        with Image.open(self.images[index]) as image:
            return image.height, image.width

    def labels(self, index: int) -> Tensor:
        """Return the labels of an image without decoding the image.

        Raises:
            DataError: if the mask cannot be decoded, or has a value that is not allowed.
        """
        from PIL import Image

        path = self.masks[index]
        try:
            with Image.open(path) as mask:
                values = np.asarray(mask)  # of a palette image: the indices
        except Exception as error:  # Pillow raises many types for a file that is not an image
            raise DataError(f"cannot read the mask {path}: {type(error).__name__}: {error}.") from None
        return apply_lookup(values, self.lookup, str(path))


def find_masks(name: str, images: Path, masks: Path, lookup: Lookup, mask_key: Callable[[str], str] = str) -> MaskFiles:
    """Pair the images of a folder with the masks of the same names in another folder.

    Args:
        name: the data set, for messages.
        images: the folder of the images; they may be in subfolders.
        masks: the folder of the masks, with the same subfolders.
        lookup: maps the values of a mask to classes.
        mask_key: maps the name of a mask without its extension to that of its image; "" for files that are not masks.

    Raises:
        DataError: if a folder is missing or empty, an image has no mask or a mask no image, or sizes differ.
    """
    image_files = _by_key(name, images, lambda stem: stem.removesuffix("_leftImg8bit"))
    mask_files = _by_key(name, masks, mask_key)
    _check_partners(name, "image", image_files, f"a mask of the same name in {masks}", mask_files)
    _check_partners(name, "mask", mask_files, f"an image of the same name in {images}", image_files)
    pairs = [(image_files[key], mask_files[key]) for key in sorted(image_files)]
    _check_sizes(name, pairs)
    return MaskFiles([image for image, _ in pairs], [mask for _, mask in pairs], lookup)


def _by_key(name: str, folder: Path, key: Callable[[str], str]) -> dict[str, Path]:
    """Return the files of a folder by their path in it, without extension and as `key` maps the name."""
    if not folder.is_dir():
        raise DataError(f"{name} must have the folder {folder.absolute()}; it does not exist.")
    files = [file for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES and key(file.stem)]
    if not files:
        raise DataError(f"{name} must have images ({' '.join(IMAGE_SUFFIXES)}) in {folder.absolute()}; got none.")
    return {str(file.relative_to(folder).with_name(key(file.stem))): file for file in files}


def _check_partners(name: str, kind: str, files: dict[str, Path], partner: str, partners: dict[str, Path]) -> None:
    if alone := sorted(files.keys() - partners.keys()):
        raise DataError(
            f"{name}: every {kind} must have {partner}; {len(alone)} of {len(files)} have none, first {files[alone[0]]}."
        )


def _check_sizes(name: str, pairs: list[tuple[Path, Path]]) -> None:
    """Compare the sizes of images and masks, from the headers of their files."""
    from PIL import Image, UnidentifiedImageError

    different = []
    for image_path, mask_path in pairs:
        try:
            with Image.open(image_path) as image, Image.open(mask_path) as mask:
                if image.size != mask.size:
                    different.append((mask_path, mask.size, image.size))
        except (UnidentifiedImageError, OSError) as error:
            raise DataError(f"{name}: cannot read {image_path} or {mask_path}: {error}.") from None
    if different:
        path, size, expected = different[0]
        raise DataError(
            f"{name}: a mask must have the size of its image; {len(different)} of {len(pairs)} do not, first {path}: "
            f"{size[0]} × {size[1]} pixels, its image {expected[0]} × {expected[1]}."
        )
