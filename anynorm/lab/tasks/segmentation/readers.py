"""Readers of segmentation data: .npz files of the data directory, and folders of images and masks.

    camvid nuclei pets    NAME/*.npz under the data directory: encoded images with offsets, masks, and the split of each image
    camvid:PATH           SegNet's layout: train/ trainannot/ test/ testannot/
    cityscapes:PATH       leftImg8bit/train/CITY/… gtFine/train/CITY/…_gtFine_labelIds.png (or labelTrainIds); tests on val
    ade20k:PATH           ADEChallengeData2016: images/training annotations/training; validation is the test split

Masks are mapped to labels by lookup tables; see `masks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from anynorm.lab.data.download import find_file, find_path
from anynorm.lab.data.image_sources import EncodedImages
from anynorm.lab.data.npz import Arrays, load_npz
from anynorm.lab.tasks.segmentation.masks import IGNORED, Lookup, Sample, apply_lookup, find_masks, make_lookup

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


def read_camvid_folder(name: str) -> Splits:
    """Find the images of `camvid:PATH`; pixels of class void (11) are ignored."""
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
    """Find the images of `ade20k:PATH`; pixels of value 0 are ignored. Class names are those of objectInfo150.txt, if present."""
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


def read_camvid(name: str) -> Splits:
    """Read CamVid: 367 training and 233 test images of 240 × 180 pixels."""
    arrays = load_npz(find_file("camvid/camvid_*.npz"), "images", "offsets", "labels", "split", "classes")
    lookup = make_lookup({label: label for label in range(len(CAMVID))}, [len(CAMVID)])
    train, test = _decode(arrays, list(arrays["labels"]), lookup, name)
    return Splits(train, test, tuple(arrays["classes"].tolist())[: len(CAMVID)])


def read_nuclei(name: str) -> Splits:
    """Read the nuclei of the 2018 Data Science Bowl: 498 training and 166 test images, nuclei against the background."""
    arrays = load_npz(find_file("nuclei/nuclei_*.npz"), "images", "offsets", "labels", "shapes", "split")
    shapes = arrays["shapes"].astype(int)
    maps = np.split(arrays["labels"] > 0, np.cumsum(shapes.prod(1))[:-1])
    masks = [values.reshape(shape).astype(np.uint8) for values, shape in zip(maps, shapes, strict=True)]
    train, test = _decode(arrays, masks, make_lookup({0: 0, 1: 1}), name)
    return Splits(train, test, ("background", "nucleus"))


def read_pets(name: str) -> Splits:
    """Read Oxford-IIIT Pets with trimaps: 1480 training and 740 test images of 96 × 96 pixels."""
    arrays = load_npz(find_file("pets/pets_*.npz"), "images", "offsets", "trimaps", "split")
    train, test = _decode(arrays, list(arrays["trimaps"]), make_lookup({1: 0, 2: 1, 3: 2}), name)
    return Splits(train, test, ("pet", "background", "border"))


def _decode(arrays: Arrays, masks: list[npt.NDArray[Any]], lookup: Lookup, name: str) -> tuple[list[Sample], list[Sample]]:
    """Return training samples (split 0) and test samples (the last split); a validation split between them is not used."""
    source = EncodedImages.from_bytes(name, arrays["images"], arrays["offsets"])
    splits: tuple[list[Sample], list[Sample]] = [], []
    last = int(arrays["split"].max())
    for index, (mask, split) in enumerate(zip(masks, arrays["split"].tolist(), strict=True)):
        if split in (0, last):
            labels = apply_lookup(mask, lookup, source.name(index))
            splits[split == last].append((source.read(index, (labels.shape[0], labels.shape[1])), labels))
    return splits
