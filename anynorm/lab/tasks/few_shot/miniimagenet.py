"""miniImageNet (Vinyals et al. 2016): 100 classes of ImageNet with 600 images each; 64 train, 16 val and 20 test classes.

The images are a subset of ImageNet without a public download. Two layouts in the data directory are supported:

    miniimagenet/train/CLASS/IMAGE.jpg, test/CLASS/IMAGE.jpg      one folder per class
    miniimagenet/train.csv, test.csv, images/IMAGE.jpg            the lists of Ravi & Larochelle (2017): columns filename, label

The 16 validation classes are for the choice of settings: `miniimagenet-validation`.
"""

from __future__ import annotations

import csv
from pathlib import Path

from torch import Tensor

from anynorm.errors import DataError
from anynorm.lab.data.download import data_dir
from anynorm.lab.data.folder import FolderSplit, read_folder, read_split

FOLDERS = ("miniimagenet", "mini-imagenet", "mini_imagenet", "miniImageNet")
IMAGE_FOLDERS = ("images", ".")
"""Folders with the images of train.csv and test.csv, relative to these files."""


def miniimagenet(split: str, image_size: int, *, skip_unreadable: bool = False) -> tuple[Tensor, Tensor]:
    """Read the images of a split, uint8 (n, 3, image_size, image_size), and their labels from 0.

    Args:
        split: `train` (64 classes), `val` (16) or `test` (20).
        image_size: images are cropped to their central square and resized to this side; 84 in the literature.
        skip_unreadable: leave out images that cannot be decoded.

    Raises:
        DataError: if the files are missing or cannot be read.
    """
    root = next((data_dir() / name for name in FOLDERS if (data_dir() / name).is_dir()), None)
    if root is not None and (root / split).is_dir():
        return read_folder(f"folder:{root / split}", image_size, skip_unreadable=skip_unreadable)[0]
    if root is not None and (root / f"{split}.csv").is_file():
        return read_split(_list_images(root / f"{split}.csv"), image_size, skip_unreadable=skip_unreadable)
    raise DataError(
        f"miniImageNet must be in {data_dir() / FOLDERS[0]}, as {split}/CLASS/IMAGE.jpg or as {split}.csv and images/IMAGE.jpg; "
        "got neither. Its images have no public address: make it from ImageNet with the lists of Ravi & Larochelle (2017), or "
        "set ANYNORM_DATA to the directory that has it."
    )


def _list_images(path: Path) -> FolderSplit:
    """Return the files and labels of a .csv file with the columns filename and label."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or not {"filename", "label"} <= rows[0].keys():
        raise DataError(f"{path} must have the columns filename and label, and one row per image; got {len(rows)} rows.")
    folder = next((path.parent / name for name in IMAGE_FOLDERS if (path.parent / name / rows[0]["filename"]).is_file()), None)
    if folder is None:
        raise DataError(f"the images of {path} must be in {path.parent / 'images'}; {rows[0]['filename']} is not there.")
    number = {name: label for label, name in enumerate(sorted({row["label"] for row in rows}))}
    return FolderSplit(path, [folder / row["filename"] for row in rows], [number[row["label"]] for row in rows])
