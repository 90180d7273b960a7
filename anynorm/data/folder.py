"""Images of a folder, one subfolder a class, decoded by several processes."""

from __future__ import annotations

import os
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
SKIP = "ANYNORM_SKIP_UNREADABLE"
"""Set to 1, images that cannot be read are named, counted and left out; else they are refused."""
MANY = 200
"""From so many images on, several processes decode."""


def read_folder(text: str, side: int) -> list[tuple[Tensor, Tensor]]:
    """Read PATH/train and PATH/test, or PATH alone, as one or two splits."""
    root = Path(text)
    if not root.is_dir():
        raise DataError(
            f"There is no folder {root.absolute()}: folder:{root} is to hold train/CLASS/… and test/CLASS/… (or CLASS/… alone)."
        )
    both = [root / "train", next((root / name for name in ("test", "val", "valid") if (root / name).is_dir()), root / "test")]
    splits = both if all(path.is_dir() for path in both) else [root]
    classes = sorted(path.name for path in splits[0].iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(classes) < 2:
        raise DataError(f"{splits[0]} has {len(classes)} subfolder(s); a data set has one for each of two or more classes.")
    for split in splits[1:]:
        others = sorted(path.name for path in split.iterdir() if path.is_dir() and not path.name.startswith("."))
        if not set(others) <= set(classes):
            raise DataError(f"{split} has classes that {splits[0]} has not: {' '.join(sorted(set(others) - set(classes)))}.")
    return [_read_split(split, classes, side) for split in splits]


def _read_split(split: Path, classes: list[str], side: int) -> tuple[Tensor, Tensor]:
    found = [(path, label) for label, name in enumerate(classes) for path in sorted((split / name).rglob("*"))]
    files = [(path, label) for path, label in found if path.suffix.lower() in IMAGE_SUFFIXES]
    if not files:
        raise DataError(f"{split} holds no image ({' '.join(IMAGE_SUFFIXES)}).")
    images = list(track(_decoded([path for path, _ in files], side), f"reading {split}", len(files)))
    broken = [path for (path, _), image in zip(files, images, strict=True) if image is None]
    if broken and os.environ.get(SKIP) != "1":
        told = f"{len(broken)} of {len(files)} images cannot be read, such as {broken[0]}"
        raise DataError(f"{told}. Mend them, or leave them out (--skip-unreadable, or {SKIP}=1).")
    if len(broken) == len(files):
        raise DataError(f"None of the {len(files)} images of {split} can be read, such as {broken[0]}.")
    for path in broken:
        sys.stderr.write(f"left out, cannot be read: {path}\n")
    read = [(image, label) for image, (_, label) in zip(images, files, strict=True) if image is not None]
    return torch.from_numpy(np.stack([image for image, _ in read])), torch.tensor([label for _, label in read])


def _decoded(paths: list[Path], side: int) -> Iterator[Pixels | None]:
    decode_one = partial(decode, side=side)
    if len(paths) < MANY:
        yield from map(decode_one, paths)
        return
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        yield from pool.map(decode_one, paths, chunksize=64)


def decode(path: Path, side: int) -> Pixels | None:
    """Decode an image as bytes (3, side, side), its middle square; None where it is none."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            deep = image.mode.startswith("I")  # 16 bits a pixel, which Pillow would cut off at 255
            grey = image.point(lambda value: value / 257).convert("L") if deep else image
            fitted = ImageOps.fit(grey.convert("RGB"), (side, side))
    except Exception:  # whatever Pillow raises about a file that is no image, or too large a one
        return None
    return np.ascontiguousarray(np.moveaxis(np.asarray(fitted, dtype=np.uint8), 2, 0))
