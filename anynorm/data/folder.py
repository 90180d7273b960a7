"""Images of a folder with one subfolder per class, decoded by several processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.io.inputs import IMAGE_SUFFIXES
from anynorm.progress import track

Pixels = npt.NDArray[Any]
MIN_IMAGES_FOR_PROCESSES = 200
"""Fewer images are decoded faster by this process than by processes that must start first."""


def read_folder(path: str | Path, image_size: int, *, skip_unreadable: bool = False) -> list[tuple[Tensor, Tensor]]:
    """Read PATH/train/CLASS/… and PATH/test/CLASS/… (or val, valid), or PATH/CLASS/… alone.

    Args:
        path: The folder. Classes are its subfolders in alphabetical order; images may lie in subfolders of these.
        image_size: Images are cropped to their central square and resized to image_size × image_size.
        skip_unreadable: Leave out images that cannot be decoded, and name each on stderr.

    Returns:
        One or two splits (train, then test), each as uint8 images (n, 3, h, w) and labels (n,).

    Raises:
        DataError: if the folder does not have this structure, or an image cannot be decoded and `skip_unreadable` is False.
    """
    root = Path(path)
    if not root.is_dir():
        layout = "train/CLASS/… and test/CLASS/…, or CLASS/… alone"
        raise DataError(f"folder:{root} must be an existing folder with {layout}; {root.absolute()} does not exist.")
    test = next((root / name for name in ("test", "val", "valid") if (root / name).is_dir()), None)
    splits = [root] if test is None or not (root / "train").is_dir() else [root / "train", test]
    classes = _class_names(splits[0])
    if len(classes) < 2:
        raise DataError(
            f"{splits[0]} must have one subfolder per class, for at least 2 classes; got {len(classes)} subfolder(s)."
        )
    for split in splits[1:]:
        if extra := sorted(set(_class_names(split)) - set(classes)):
            raise DataError(f"the classes of {split} must be among those of {splits[0]}; got also: {' '.join(extra)}.")
    return [_read_split(split, classes, image_size, skip_unreadable=skip_unreadable) for split in splits]


def _class_names(split: Path) -> list[str]:
    return sorted(path.name for path in split.iterdir() if path.is_dir() and not path.name.startswith("."))


def _read_split(split: Path, classes: list[str], image_size: int, *, skip_unreadable: bool) -> tuple[Tensor, Tensor]:
    files = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((split / name).rglob("*"))
        if path.suffix.lower() in IMAGE_SUFFIXES
    ]
    if not files:
        raise DataError(f"{split} must contain images ({' '.join(IMAGE_SUFFIXES)}); got none.")
    decoded = track(_decode_all([path for path, _ in files], image_size), f"reading {split}", len(files))
    images, labels, unreadable = [], [], []
    for (path, label), image in zip(files, decoded, strict=True):
        if image is None:
            unreadable.append(path)
        else:
            images.append(image)
            labels.append(label)
    if unreadable and not (skip_unreadable and images):
        advice = (
            "No image is left." if skip_unreadable else "Fix them, or leave them out (--skip-unreadable, skip_unreadable=True)."
        )
        raise DataError(f"cannot read {len(unreadable)} of {len(files)} images of {split}, such as {unreadable[0]}. {advice}")
    for path in unreadable:
        sys.stderr.write(f"skipped unreadable image: {path}\n")
    return torch.from_numpy(np.stack(images)), torch.tensor(labels)


def _decode_all(paths: list[Path], image_size: int) -> Iterator[Pixels | None]:
    decode = partial(decode_image, image_size=image_size)
    if len(paths) < MIN_IMAGES_FOR_PROCESSES:
        yield from map(decode, paths)
        return
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        yield from pool.map(decode, paths, chunksize=64)


def decode_image(path: Path, image_size: int) -> Pixels | None:
    """Decode the central square of an image as uint8 (3, image_size, image_size); return None if that is impossible."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            is_16_bit = image.mode.startswith("I")  # Pillow would clip 16-bit values at 255
            eight_bit = image.point(lambda value: value / 257).convert("L") if is_16_bit else image
            square = ImageOps.fit(eight_bit.convert("RGB"), (image_size, image_size))
    except Exception:  # Pillow raises many types for a file that is not an image, or is too large
        return None
    return np.ascontiguousarray(np.moveaxis(np.asarray(square, dtype=np.uint8), 2, 0))
