"""Images without labels, decoded when they are used: the content and the styles of style transfer.

    folder:PATH   a folder of images at any depth; PATH/train and PATH/test (or val, valid) if it has them, else a random split
    npz:PATH      a .npz file of encoded images: `bytes`, one after another, and `offsets` (n + 1); a random split
    digits …      a data set of `anynorm.lab.data`, without its labels

A path is relative to the working directory or to the data directory ($ANYNORM_DATA). The random split is the same in every run.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.io.inputs import IMAGE_SUFFIXES
from anynorm.lab.data.datasets import load_in_memory
from anynorm.lab.data.download import find_path
from anynorm.lab.data.folder import FolderSplit, split_indices
from anynorm.lab.data.loader import ImageSource, Indices
from anynorm.lab.data.stream import LabeledImageFiles, leave_out_unreadable
from anynorm.lab.data.transforms import Pixels, resize_box, to_pixels, to_rgb

if TYPE_CHECKING:
    from PIL.Image import Image

TEST_FOLDERS = ("test", "val", "valid")
Splits = tuple[ImageSource, ImageSource]
"""Training and test images."""


@dataclass(frozen=True, eq=False)
class EncodedImages:
    """Encoded images in one array of bytes.

    Attributes:
        root: the file, for messages.
        bytes: the concatenated files of all images.
        offsets: the start of each image, and the end of the last one.
        indices: the indices of the images that are used.
    """

    root: str
    bytes: npt.NDArray[np.uint8]
    offsets: npt.NDArray[Any]
    indices: npt.NDArray[np.int64]

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """Zeros, because the images have no labels."""
        return np.zeros(len(self), np.int64)

    def __len__(self) -> int:
        return len(self.indices)

    def open(self, index: int) -> Image:
        """Open an image. Pillow decodes it when its pixels are used."""
        from PIL import Image

        number = self.indices[index]
        return Image.open(io.BytesIO(self.bytes[self.offsets[number] : self.offsets[number + 1]].tobytes()))

    def name(self, index: int) -> str:
        """Return the file and the number of an image."""
        return f"{self.root}, image {self.indices[index]}"

    def select(self, indices: Indices) -> EncodedImages:
        """Return a subset of the images."""
        return EncodedImages(self.root, self.bytes, self.offsets, self.indices[np.asarray(indices)])


@dataclass(frozen=True, eq=False)
class ArrayImages:
    """Decoded images in one array (n, h, w, 3)."""

    root: str
    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", np.zeros(len(self.images), np.int64))

    def __len__(self) -> int:
        return len(self.images)

    def open(self, index: int) -> Image:
        """Return a Pillow image."""
        from PIL import Image

        return Image.fromarray(self.images[index])

    def name(self, index: int) -> str:
        """Return the data set and the number of an image."""
        return f"{self.root}, image {index}"

    def select(self, indices: Indices) -> ArrayImages:
        """Return a subset of the images."""
        return ArrayImages(self.root, self.images[np.asarray(indices)])


@dataclass(frozen=True)
class RandomCrop:
    """Resize the shorter side of an image and crop a random square.

    Args:
        resize: the shorter side after resizing, at least `image_size`.
        image_size: the side of the square.
    """

    resize: int
    image_size: int

    def __call__(self, image: Image, generator: np.random.Generator) -> Pixels:
        """Return the pixels, uint8 (3, image_size, image_size)."""
        whole = resize_shorter_side(image, self.resize)
        left, top = (int(generator.integers(side - self.image_size + 1)) for side in whole.size)
        return to_pixels(whole.crop((left, top, left + self.image_size, top + self.image_size)))


@dataclass(frozen=True)
class CenterCrop:
    """Resize the shorter side of an image and crop the central square; see `RandomCrop`."""

    resize: int
    image_size: int

    def __call__(self, image: Image, generator: np.random.Generator) -> Pixels:
        """Return the pixels, uint8 (3, image_size, image_size); the generator is not used."""
        whole = resize_shorter_side(image, self.resize)
        left, top = ((side - self.image_size) // 2 for side in whole.size)
        return to_pixels(whole.crop((left, top, left + self.image_size, top + self.image_size)))


def resize_shorter_side(image: Image, size: int) -> Image:
    """Return an RGB image, resized so that its shorter side has `size` pixels; the aspect ratio is kept."""
    width, height = image.size
    scale = size / min(width, height)
    return resize_box(image, (0, 0, width, height), (max(size, round(width * scale)), max(size, round(height * scale))))


def load_unlabeled(name: str, *, skip_unreadable: bool = False) -> Splits:
    """Return the training and test images of a folder, a .npz file or a data set.

    Args:
        name: `folder:PATH`, `npz:PATH`, or a name of `anynorm.lab.data`.
        skip_unreadable: leave out image files that cannot be decoded.

    Raises:
        DataError: if the folder or file does not exist, or has fewer than two images.
    """
    kind, _, path = name.partition(":")
    splits: list[ImageSource]
    if kind == "folder":
        splits = _folder_splits(name, find_path(path))
    elif kind == "npz":
        splits = [_read_npz(name, find_path(path))]
    else:
        data = load_in_memory(name)
        splits = [ArrayImages(name, _to_rgb(images)) for images, _ in (data.train, data.test)]
    if skip_unreadable:
        splits = [leave_out_unreadable(split) for split in splits]
    if len(splits) == 1:
        if len(splits[0]) < 2:
            raise DataError(f"{name} must have at least 2 images, for training and testing; got {len(splits[0])}.")
        train, test = split_indices(len(splits[0]))
        splits = [splits[0].select(train), splits[0].select(test)]
    return splits[0], splits[1]


def find_image(path: str) -> Path:
    """Resolve the path of an image, relative to the working directory or to the data directory.

    Args:
        path: the path; `sklearn:china.jpg` and `sklearn:flower.jpg` are scikit-learn's photographs.
    """
    if path.startswith("sklearn:"):
        return Path(str(resources.files("sklearn.datasets") / "images" / path.removeprefix("sklearn:")))
    return find_path(path)


def _to_rgb(images: Tensor) -> npt.NDArray[np.uint8]:
    return images.expand(-1, 3, -1, -1).movedim(1, 3).contiguous().numpy()


def _folder_splits(name: str, root: Path) -> list[ImageSource]:
    if not root.is_dir():
        raise DataError(f"{name} must be an existing folder of images; {root.absolute()} does not exist.")
    test = next((root / split for split in TEST_FOLDERS if (root / split).is_dir()), None)
    paths = [root] if test is None or not (root / "train").is_dir() else [root / "train", test]
    return [_find_images(name, path) for path in paths]


def _find_images(name: str, path: Path) -> ImageSource:
    files = [file for file in sorted(path.rglob("*")) if file.suffix.lower() in IMAGE_SUFFIXES]
    if not files:
        raise DataError(f"{name} must contain images ({' '.join(IMAGE_SUFFIXES)}); got none in {path}.")
    return LabeledImageFiles.from_split(FolderSplit(path, files, [0] * len(files)))


def _read_npz(name: str, path: Path) -> ImageSource:
    if not path.is_file():
        raise DataError(f"{name} must be an existing .npz file; {path.absolute()} does not exist.")
    try:
        with np.load(path) as arrays:
            encoded, offsets = arrays["bytes"], arrays["offsets"].astype(np.int64)
    except Exception as error:  # numpy and zipfile raise many types for a file of another format
        raise DataError(
            f"{name} must hold the arrays bytes and offsets of encoded images: {type(error).__name__}: {error}."
        ) from None
    return EncodedImages(str(path), encoded, offsets, np.arange(len(offsets) - 1))


def read_image(path: Path, *, apply_exif: bool = True) -> Tensor:
    """Return the pixels of an image file, uint8 (3, h, w).

    Args:
        path: the file.
        apply_exif: whether to apply the EXIF orientation.

    Raises:
        DataError: if the file does not exist or cannot be decoded.
    """
    from PIL import Image, ImageOps

    if not path.is_file():
        raise DataError(f"image not found: {path}.")
    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image) if apply_exif else image
            return torch.from_numpy(to_pixels(to_rgb(upright)))
    except Exception as error:  # Pillow raises many types for a file that is not an image, or is too large
        raise DataError(f"cannot read the image {path}: {type(error).__name__}: {error}.") from None
