"""Data named on a command line, as batches: x alone, or (x, labels) where there are labels.

images/              a folder of images, one subfolder a class, or images alone
x.npz x.npy x.pt     a file of tensors: inputs (n, c, …) first, then labels (n,) if there are any
package.module:make  what the factory gives: a tensor, or a loader
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.io.checkpoints import call_factory

_FILES = (".npz", ".npy", ".pt", ".pth")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Images:
    """How images of a folder become inputs: the middle square, of `side` pixels, standardised by mean and std."""

    side: int = 224
    mean: tuple[float, ...] = IMAGENET[0]
    std: tuple[float, ...] = IMAGENET[1]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or len(self.mean) not in (1, 3):
            raise DataError(
                f"{len(self.mean)} means and {len(self.std)} deviations; give one of each, for grey images, or three."
            )

    def read(self, path: Path) -> Tensor:
        """Read an image (c, side, side): one channel where there is one mean, else three."""
        from PIL import Image, ImageOps, UnidentifiedImageError

        try:
            with Image.open(path) as image:
                fitted = ImageOps.fit(image.convert("L" if len(self.mean) == 1 else "RGB"), (self.side, self.side))
        except (UnidentifiedImageError, OSError) as error:
            raise DataError(f"{path} is no image that can be read: {error}.") from None
        pixels = torch.from_numpy(np.array(fitted)).float().reshape(self.side, self.side, -1).movedim(-1, 0) / 255
        mean, std = (torch.tensor(values).reshape(-1, 1, 1) for values in (self.mean, self.std))
        return (pixels - mean) / std


def read_batches(text: str, batch_size: int = 64, images: Images | None = None) -> Iterator[Any]:
    """Read the batches that a text names."""
    path = Path(text)
    if path.is_dir():
        yield from _read_folder(path, batch_size, images or Images())
    elif path.suffix in _FILES:
        yield from _split(_read_file(path), batch_size)
    elif ":" not in text:
        raise DataError(f"{text!r} is no folder, no file ({' '.join(_FILES)}) and no package.module:factory.")
    else:
        yield from _of_factory(text, batch_size)


def _of_factory(text: str, batch_size: int) -> Iterator[Any]:
    """Give the batches of a loader; a tensor, or a pair of inputs and labels, is split into some."""
    found = call_factory(text)
    if isinstance(found, Tensor):
        return _split([found], batch_size)
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Tensor) and _labels(found[1], len(found[0])):
        return _split(list(found), batch_size)
    if not isinstance(found, Iterable):
        raise DataError(f"{text!r} gave a {type(found).__name__}; a loader, a tensor, or (inputs, labels) was wanted.")
    return iter(found)


def first_input(text: str, count: int = 2) -> Any:
    """Read the x of the first few samples that a text names."""
    batch = next(iter(read_batches(text, count)), None)
    if batch is None:
        raise DataError(f"{text!r} gave no batch.")
    return batch[0] if isinstance(batch, tuple | list) else batch


def _split(tensors: list[Tensor], batch_size: int) -> Iterator[Any]:
    for rows in zip(*(torch.split(tensor, batch_size) for tensor in tensors), strict=True):
        yield rows if len(rows) > 1 else rows[0]


def _read_folder(path: Path, batch_size: int, images: Images) -> Iterator[Any]:
    """Read images as they are wanted; subfolders are classes, in the order of their names."""
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
    if not found:
        raise DataError(f"The folder {path} holds no image ({' '.join(IMAGE_SUFFIXES)}).")
    classes = sorted({file.relative_to(path).parts[0] for file in found if file.parent != path})
    for start in range(0, len(found), batch_size):
        files = found[start : start + batch_size]
        x = torch.stack([images.read(file) for file in files])
        labelled = classes and all(file.parent != path for file in found)
        yield (x, torch.tensor([classes.index(file.relative_to(path).parts[0]) for file in files])) if labelled else x


def _read_file(path: Path) -> list[Tensor]:
    """Read inputs and, where the second entry is as long and of whole numbers, labels."""
    if not path.exists():
        raise DataError(f"There is no file {path}.")
    try:
        entries = _entries(path)
    except Exception as error:  # whatever torch and numpy raise about a file that is none of theirs
        raise DataError(f"{path} cannot be read: {type(error).__name__}: {error}.") from None
    if not entries or not isinstance(entries[0], Tensor) or entries[0].dim() < 2:
        raise DataError(f"{path} holds no tensor (n, c, …) as its first entry.")
    labels = [entry for entry in entries[1:2] if isinstance(entry, Tensor) and _labels(entry, len(entries[0]))]
    return [entries[0].float(), *(entry.long() for entry in labels)]


def _entries(path: Path) -> list[Any]:
    if path.suffix in (".pt", ".pth"):
        found = torch.load(path, map_location="cpu", weights_only=True)
        entries = list(found.values()) if isinstance(found, dict) else found
        return list(entries) if isinstance(entries, tuple | list) else [entries]
    loaded = np.load(path)
    arrays = [loaded[name] for name in loaded.files] if path.suffix == ".npz" else [loaded]
    return [torch.from_numpy(array) for array in arrays]


def _labels(tensor: Tensor, count: int) -> bool:
    return tensor.shape == (count,) and not (tensor.is_floating_point() or tensor.is_complex())
