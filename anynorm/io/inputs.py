"""Input batches by name. A batch is x, or (x, labels) if there are labels.

images/                  a folder of images, with one subfolder per class, or without subfolders and labels
x.npz x.npy x.pt x.pth   a file of tensors: inputs (n, c, …) first, then labels (n,) if any
package.module:factory   a function that returns a tensor, (inputs, labels), or an iterable of batches
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
from anynorm.io.pillow import require_pillow

TENSOR_SUFFIXES = (".npz", ".npy", ".pt", ".pth")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class ImageTransform:
    """Transform of an image file: central square crop, resizing, and standardization of the values in [0, 1] per channel.

    Args:
        image_size: Height and width of the result.
        mean: Mean to subtract, per channel; one value for grayscale images, three for RGB.
        std: Standard deviation to divide by, per channel.

    Raises:
        DataError: if `mean` and `std` do not both have one value or both three.
    """

    image_size: int = 224
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or len(self.mean) not in (1, 3):
            counts = f"{len(self.mean)} and {len(self.std)}"
            raise DataError(f"mean and std must have one value each (grayscale) or three each (RGB); got {counts}.")

    def read(self, path: Path) -> Tensor:
        """Read an image file as a float tensor (c, image_size, image_size).

        Raises:
            DataError: if the file cannot be decoded, or Pillow is not installed.
        """
        require_pillow()
        from PIL import Image, ImageOps, UnidentifiedImageError

        size = (self.image_size, self.image_size)
        try:
            with Image.open(path) as image:
                square = ImageOps.fit(image.convert("L" if len(self.mean) == 1 else "RGB"), size)
        except (UnidentifiedImageError, OSError) as error:
            raise DataError(f"cannot read {path} as an image: {error}.") from None
        pixels = torch.from_numpy(np.array(square)).float().reshape(*size, -1).movedim(-1, 0) / 255
        mean, std = (torch.tensor(values).reshape(-1, 1, 1) for values in (self.mean, self.std))
        return (pixels - mean) / std


def read_batches(name: str, batch_size: int = 64, transform: ImageTransform | None = None) -> Iterator[Any]:
    """Yield the batches of a folder, a file or a factory.

    Args:
        name: A folder of images, a file of tensors, or `package.module:factory`; see `anynorm.io.inputs`.
        batch_size: Number of samples per batch; ignored if a factory returns an iterable of batches.
        transform: Transform of the images of a folder; `ImageTransform()` by default.

    Yields:
        x, or (x, labels) if there are labels.

    Raises:
        DataError: if the name is invalid, or the data cannot be read.
    """
    path = Path(name)
    if path.is_dir():
        yield from _read_folder(path, batch_size, transform or ImageTransform())
    elif path.suffix in TENSOR_SUFFIXES:
        yield from _split(_read_file(path), batch_size)
    elif ":" in name:
        yield from _call_factory(name, batch_size)
    else:
        raise DataError(f"expected a folder, a file ({' '.join(TENSOR_SUFFIXES)}) or package.module:factory; got {name!r}.")


def read_first_batch(name: str, num_samples: int = 2) -> Any:
    """Return the first batch of `read_batches`, with `num_samples` samples unless a factory returns an iterable of batches.

    Raises:
        DataError: if the data are empty or cannot be read.
    """
    batch = next(iter(read_batches(name, num_samples)), None)
    if batch is None:
        raise DataError(f"{name!r} must provide at least one batch; got none.")
    return batch


def _call_factory(name: str, batch_size: int) -> Iterator[Any]:
    """Return the batches of the iterable that a factory returns; split a tensor, or (inputs, labels), into batches."""
    data = call_factory(name)
    if isinstance(data, Tensor):
        return _split([data], batch_size)
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], Tensor) and _is_labels(data[1], len(data[0])):
        return _split(list(data), batch_size)
    if not isinstance(data, Iterable):
        expected = "a tensor, (inputs, labels) or an iterable of batches"
        raise DataError(f"{name!r} must return {expected}; got {type(data).__name__}.")
    return iter(data)


def _split(tensors: list[Tensor], batch_size: int) -> Iterator[Any]:
    for batch in zip(*(torch.split(tensor, batch_size) for tensor in tensors), strict=True):
        yield batch if len(batch) > 1 else batch[0]


def _read_folder(folder: Path, batch_size: int, transform: ImageTransform) -> Iterator[Any]:
    """Read the images of a folder batch by batch; the subfolders are the classes, numbered in alphabetical order."""
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
    if not files:
        raise DataError(f"the folder {folder} must contain images ({' '.join(IMAGE_SUFFIXES)}); got none.")
    is_labeled = all(file.parent != folder for file in files)
    classes = sorted({file.relative_to(folder).parts[0] for file in files})
    for start in range(0, len(files), batch_size):
        chunk = files[start : start + batch_size]
        x = torch.stack([transform.read(file) for file in chunk])
        yield (x, torch.tensor([classes.index(file.relative_to(folder).parts[0]) for file in chunk])) if is_labeled else x


def _read_file(path: Path) -> list[Tensor]:
    """Read the inputs of a file, and its labels if the second entry has one integer per sample."""
    if not path.exists():
        raise DataError(f"file not found: {path}.")
    try:
        entries = _read_entries(path)
    except Exception as error:  # torch and numpy raise many types for a file of another format
        raise DataError(f"cannot read {path}: {type(error).__name__}: {error}.") from None
    if not entries or not isinstance(entries[0], Tensor) or entries[0].dim() < 2:
        first = "no entry" if not entries else getattr(entries[0], "shape", type(entries[0]).__name__)
        raise DataError(f"the first entry of {path} must be a tensor (n, c, …); got {first}.")
    labels = [entry for entry in entries[1:2] if isinstance(entry, Tensor) and _is_labels(entry, len(entries[0]))]
    return [entries[0].float(), *(entry.long() for entry in labels)]


def _read_entries(path: Path) -> list[Any]:
    if path.suffix in (".pt", ".pth"):
        content = torch.load(path, map_location="cpu", weights_only=True)
        entries = list(content.values()) if isinstance(content, dict) else content
        return list(entries) if isinstance(entries, tuple | list) else [entries]
    loaded = np.load(path)
    arrays = [loaded[name] for name in loaded.files] if path.suffix == ".npz" else [loaded]
    return [torch.from_numpy(array) for array in arrays]


def _is_labels(tensor: Tensor, num_samples: int) -> bool:
    return tensor.shape == (num_samples,) and not (tensor.is_floating_point() or tensor.is_complex())
