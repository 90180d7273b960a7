"""Readers of segmentation data: .npz files of the data directory, and folders of images and masks.

    camvid nuclei pets    NAME/*.npz under the data directory: encoded images with offsets, masks, and the split of each image
    camvid:PATH           SegNet's layout: train/ trainannot/ test/ testannot/
    cityscapes:PATH       leftImg8bit/train/CITY/… gtFine/train/CITY/…_gtFine_labelIds.png (or labelTrainIds); tests on val
    ade20k:PATH           ADEChallengeData2016: images/training annotations/training; validation is the test split

A lookup table maps the values of a mask to classes from 0, to `IGNORED`, or to −1 for a value that is not allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from anynorm.data.domain_readers import load_npz, split_files
from anynorm.data.download import find_file, find_path
from anynorm.data.unlabeled import read_image
from anynorm.errors import DataError
from anynorm.io.inputs import IMAGE_SUFFIXES

IGNORED = 255
"""The label of pixels without a class: neither trained nor tested on."""
Sample = tuple[Tensor, Tensor]
"""A uint8 image (3, h, w) and uint8 labels (h, w)."""
Lookup = npt.NDArray[np.int16]
CAMVID = ("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist")
CITYSCAPES = {
    7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light", 20: "traffic sign",
    21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car", 27: "truck", 28: "bus", 31: "train",
    32: "motorcycle", 33: "bicycle",
}  # fmt: skip
"""The 19 classes by their value in labelIds."""
NUM_ADE20K = 150


class Splits(NamedTuple):
    """Training and test samples, and the names of the classes."""

    train: Sequence[Sample]
    test: Sequence[Sample]
    class_names: tuple[str, ...]


def make_lookup(classes: dict[int, int], ignored: Sequence[int] = ()) -> Lookup:
    """Return a lookup table of 256 entries.

    Args:
        classes: value of a mask to class.
        ignored: values without a class.

    >>> make_lookup({0: 0, 7: 1}, [255])[[0, 7, 255, 3]].tolist()
    [0, 1, 255, -1]
    """
    table = np.full(256, -1, np.int16)
    table[list(classes)] = list(classes.values())
    table[list(ignored)] = IGNORED
    return table


def apply_lookup(mask: npt.NDArray[Any], lookup: Lookup, name: str) -> Tensor:
    """Return the labels of a mask.

    Raises:
        DataError: if the mask has a value that is not a class.
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


# Folders ------------------------------------------------------------------------------------------------------------------------


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
        """Return the image and the labels with a number, or the files of a slice."""
        if isinstance(index, slice):
            return MaskFiles(self.images[index], self.masks[index], self.lookup)
        # masks have the orientation of the stored pixels
        return read_image(self.images[index], apply_exif=False), self.labels(index)

    def size(self, index: int) -> tuple[int, int]:
        """Return height and width of an image, which are in the first bytes of its file."""
        from PIL import Image

        with Image.open(self.images[index]) as image:
            return image.height, image.width

    def labels(self, index: int) -> Tensor:
        """Return the labels of an image alone.

        Raises:
            DataError: if the mask cannot be decoded, or has a value that is not a class.
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
    """Find the images of a folder and their masks, which have the same names.

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
    """Compare the sizes of images and masks, which are in the first bytes of a file."""
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


def read_camvid_folder(name: str) -> Splits:
    """Find the images of `camvid:PATH`; void (11) is ignored."""
    root = find_path(name.partition(":")[2])
    lookup = make_lookup({label: label for label in range(len(CAMVID))}, [len(CAMVID), IGNORED])
    train, test = (find_masks(name, root / split, root / f"{split}annot", lookup) for split in ("train", "test"))
    return Splits(train, test, CAMVID)


def read_cityscapes(name: str) -> Splits:
    """Find the images of `cityscapes:PATH`, with labelTrainIds if there are any, else labelIds."""
    root = find_path(name.partition(":")[2])
    by_id = make_lookup({value: label for label, value in enumerate(CITYSCAPES)})
    by_id[[value for value in (*range(34), IGNORED) if value not in CITYSCAPES]] = IGNORED  # −1, the license plate, is 255
    by_train_id = make_lookup({label: label for label in range(len(CITYSCAPES))}, [IGNORED])
    has_train_ids = any((root / "gtFine" / "train").rglob("*_gtFine_labelTrainIds.png"))
    suffix, lookup = ("_gtFine_labelTrainIds", by_train_id) if has_train_ids else ("_gtFine_labelIds", by_id)

    def key(stem: str) -> str:
        return stem.removesuffix(suffix) if stem.endswith(suffix) else ""

    folders = [(root / "leftImg8bit" / split, root / "gtFine" / split) for split in ("train", "val")]
    train, test = (find_masks(name, images, masks, lookup, key) for images, masks in folders)
    return Splits(train, test, tuple(CITYSCAPES.values()))


def read_ade20k(name: str) -> Splits:
    """Find the images of `ade20k:PATH`; 0 is ignored. Names of classes are those of objectInfo150.txt, if it exists."""
    root = find_path(name.partition(":")[2])
    lookup = make_lookup({value: value - 1 for value in range(1, NUM_ADE20K + 1)}, [0])
    folders = [(root / "images" / split, root / "annotations" / split) for split in ("training", "validation")]
    train, test = (find_masks(name, images, masks, lookup) for images, masks in folders)
    class_names = tuple(f"class {value}" for value in range(1, NUM_ADE20K + 1))
    if (root / "objectInfo150.txt").is_file():
        lines = (root / "objectInfo150.txt").read_text().splitlines()[1:]
        found = [line.split("\t")[-1].split(",")[0].strip() for line in lines if line.strip()]
        class_names = tuple(found) if len(found) == NUM_ADE20K else class_names
    return Splits(train, test, class_names)


# Files of the data directory ----------------------------------------------------------------------------------------------------


def read_camvid() -> Splits:
    """Splits CamVid: 367 training and 233 test images of 240 × 180 pixels."""
    arrays = load_npz(find_file("camvid/camvid_*.npz"), "images", "offsets", "labels", "split", "classes")
    lookup = make_lookup({label: label for label in range(len(CAMVID))}, [len(CAMVID)])
    train, test = _decode(arrays, list(arrays["labels"]), lookup, "camvid")
    return Splits(train, test, tuple(arrays["classes"].tolist())[: len(CAMVID)])


def read_nuclei() -> Splits:
    """Splits the nuclei of the 2018 Data Science Bowl: 498 training and 166 test images, nuclei against the background."""
    arrays = load_npz(find_file("nuclei/nuclei_*.npz"), "images", "offsets", "labels", "shapes", "split")
    shapes = arrays["shapes"].astype(int)
    maps = np.split(arrays["labels"] > 0, np.cumsum(shapes.prod(1))[:-1])
    masks = [values.reshape(shape).astype(np.uint8) for values, shape in zip(maps, shapes, strict=True)]
    train, test = _decode(arrays, masks, make_lookup({0: 0, 1: 1}), "nuclei")
    return Splits(train, test, ("background", "nucleus"))


def read_pets() -> Splits:
    """Splits Oxford-IIIT Pets with trimaps: 1480 training and 740 test images of 96 × 96 pixels."""
    arrays = load_npz(find_file("pets/pets_*.npz"), "images", "offsets", "trimaps", "split")
    train, test = _decode(arrays, list(arrays["trimaps"]), make_lookup({1: 0, 2: 1, 3: 2}), "pets")
    return Splits(train, test, ("pet", "background", "border"))


def _decode(
    arrays: dict[str, npt.NDArray[Any]], masks: list[npt.NDArray[Any]], lookup: Lookup, name: str
) -> tuple[list[Sample], list[Sample]]:
    """Return training samples (split 0) and test samples (the last split); another one, for validation, is not used."""
    from PIL import Image

    files = split_files({"bytes": arrays["images"], "offsets": arrays["offsets"]})
    splits: tuple[list[Sample], list[Sample]] = [], []
    last = int(arrays["split"].max())
    for number, (file, mask, split) in enumerate(zip(files, masks, arrays["split"].tolist(), strict=True)):
        if split in (0, last):
            with Image.open(file) as image:
                pixels = torch.from_numpy(np.array(image.convert("RGB")).transpose(2, 0, 1).copy())
            splits[split == last].append((pixels, apply_lookup(mask, lookup, f"image {number} of {name}")))
    return splits
