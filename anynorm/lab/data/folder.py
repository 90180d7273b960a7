"""Images of a folder with one subfolder per class, decoded by worker processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.io.inputs import IMAGE_SUFFIXES
from anynorm.lab.data.names import find_folder
from anynorm.lab.data.transforms import Pixels, central_square, to_pixels
from anynorm.progress import track

MIN_IMAGES_FOR_PROCESSES = 200
"""Minimum number of images for which worker processes are started; fewer are decoded faster in this process."""
MAX_GIGABYTES = 4.0
"""Maximum size of a folder that is read into memory."""
TEST_FRACTION = 0.25
"""Fraction of the images used for testing when a dataset has no test split."""


class FolderSplit(NamedTuple):
    """The image files of a split, and their labels."""

    path: Path
    files: list[Path]
    labels: list[int]

    @property
    def relative_files(self) -> list[Path]:
        """The paths of the files relative to the folder of the split."""
        return [file.relative_to(self.path) for file in self.files]


def find_splits(name: str) -> list[FolderSplit]:
    """Find the images of PATH/train/CLASS/… and PATH/test/CLASS/… (or val, valid), or of PATH/CLASS/… alone.

    Args:
        name: The folder, as `folder:PATH` or `stream:PATH`. Classes are its subfolders in alphabetical order; images may lie in
            subfolders of these.

    Returns:
        One or two splits: train, then test.

    Raises:
        DataError: if the folder does not have this structure.
    """
    paths = find_split_folders(find_folder(name, "train/CLASS/… and test/CLASS/…, or CLASS/… alone"))
    classes = class_names(paths[0])
    if len(classes) < 2:
        raise DataError(f"{paths[0]} must have one subfolder per class, for at least 2 classes; got {len(classes)} subfolder(s).")
    for path in paths[1:]:
        if extra := sorted(set(class_names(path)) - set(classes)):
            raise DataError(f"the classes of {path} must be among those of {paths[0]}; got also: {' '.join(extra)}.")
    return [_find_files(path, classes) for path in paths]


def find_split_folders(root: Path) -> list[Path]:
    """Return root/train and root/test (or val, valid) if both exist, else the folder itself."""
    test = next((root / split for split in ("test", "val", "valid") if (root / split).is_dir()), None)
    return [root] if test is None or not (root / "train").is_dir() else [root / "train", test]


def split_indices(count: int) -> tuple[Tensor, Tensor]:
    """Return the indices of a random training/test split of `count` images, with a fixed seed."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    num_train = round(count * (1 - TEST_FRACTION))
    return order[:num_train], order[num_train:]


def choose_indices(count: int, num_chosen: int | None) -> Tensor:
    """Return the indices of a random subset of `count` images, with a fixed seed; None for all, in order."""
    if num_chosen is None or num_chosen >= count:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:num_chosen]


def read_folder(name: str, image_size: int, *, skip_unreadable: bool = False) -> list[tuple[Tensor, Tensor]]:
    """Read the images of `folder:PATH`; see `find_splits` for its structure.

    Args:
        name: `folder:PATH`.
        image_size: Images are cropped to their central square and resized to image_size × image_size.
        skip_unreadable: Leave out images that cannot be decoded, and name each on stderr.

    Returns:
        One or two splits (train, then test), each as uint8 images (n, 3, h, w) and labels (n,).

    Raises:
        DataError: if the folder does not have this structure, needs more than `MAX_GIGABYTES` of memory, or an image cannot be
            decoded and `skip_unreadable` is False.
    """
    splits = find_splits(name)
    count = sum(len(split.files) for split in splits)
    gigabytes = count * 3 * image_size**2 / 1e9
    if gigabytes > MAX_GIGABYTES:
        raise DataError(
            f"{name} must need at most {MAX_GIGABYTES:g} GB of memory; got {count} images of 3 × {image_size} × {image_size}: "
            f"{gigabytes:.1f} GB. Use stream:{name.partition(':')[2]} (decodes images while training) or a smaller image_size."
        )
    return [read_split(split, image_size, skip_unreadable=skip_unreadable) for split in splits]


def class_names(split: Path) -> list[str]:
    """Return the names of the classes of a folder: its subfolders in alphabetical order."""
    return sorted(path.name for path in split.iterdir() if path.is_dir() and not path.name.startswith("."))


def _find_files(path: Path, classes: list[str]) -> FolderSplit:
    files = [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted((path / name).rglob("*"))
        if file.suffix.lower() in IMAGE_SUFFIXES
    ]
    if not files:
        raise DataError(f"{path} must contain images ({' '.join(IMAGE_SUFFIXES)}); got none.")
    return FolderSplit(path, [file for file, _ in files], [label for _, label in files])


def read_split(split: FolderSplit, image_size: int, *, skip_unreadable: bool) -> tuple[Tensor, Tensor]:
    """Decode the images of a split; see `read_folder`."""
    decoded = track(_decode_all(split.files, image_size), f"reading {split.path}", len(split.files))
    images, labels, unreadable = [], [], []
    for path, label, image in zip(split.files, split.labels, decoded, strict=True):
        if image is None:
            unreadable.append(str(path))
        else:
            images.append(image)
            labels.append(label)
    report_unreadable(unreadable, len(split.files), str(split.path), skip_unreadable=skip_unreadable)
    return torch.from_numpy(np.stack(images)), torch.tensor(labels)


def report_unreadable(unreadable: list[str], count: int, split: str, *, skip_unreadable: bool) -> None:
    """List the unreadable images of a split on stderr if they may be skipped; raise DataError otherwise."""
    if unreadable and not (skip_unreadable and len(unreadable) < count):
        advice = (
            "No image is left." if skip_unreadable else "Fix them, or leave them out (--skip-unreadable, skip_unreadable=True)."
        )
        raise DataError(f"cannot read {len(unreadable)} of {count} images of {split}, such as {unreadable[0]}. {advice}")
    for name in unreadable:
        sys.stderr.write(f"skipped unreadable image: {name}\n")


def _decode_all(paths: list[Path], image_size: int) -> Iterator[Pixels | None]:
    decode = partial(decode_image, image_size=image_size)
    if len(paths) < MIN_IMAGES_FOR_PROCESSES:
        yield from map(decode, paths)
        return
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        yield from pool.map(decode, paths, chunksize=64)


def decode_image(path: Path, image_size: int) -> Pixels | None:
    """Decode the central square of an image as uint8 (3, image_size, image_size); return None if it cannot be decoded."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            return to_pixels(central_square(image, image_size))
    except Exception:  # Pillow raises many types for a file that is not an image, or is too large
        return None
