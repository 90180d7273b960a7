"""Images that are decoded when they are used: files of a folder, encoded bytes in memory, or pixels in memory.

    ImageFiles      paths, for data of any size
    EncodedImages   the bytes of PNG, JPEG or WebP files, one after another
    DecodedImages   uint8 tensors

`open(index)` returns a Pillow image, and `read(index, size)` uint8 pixels (3, h, w): gray images are repeated in three channels,
the alpha channel is discarded, and values of 16 bits are divided by 257. All of them can be sent to worker processes.
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from anynorm.errors import DataError, ReadError
from anynorm.lab.data.ragged import Array, Ragged
from anynorm.lab.data.transforms import to_pixels, to_rgb

if TYPE_CHECKING:
    from PIL.Image import Image

Indices = Sequence[int] | npt.NDArray[np.int64] | Tensor
Size = tuple[int, int]
"""Height and width, in pixels."""
_ORIENTATION = 0x0112
"""The EXIF tag of the orientation; values 5 to 8 swap height and width."""


@dataclass(frozen=True, eq=False)
class ImageSource(ABC):
    """A sequence of images that Pillow opens.

    Attributes:
        root: the folder, the file or the name of the data set, for messages.
        indices: the index of each image among those of `root`, (n,).
        labels: the label of each image, (n,); zeros if the images have none.
    """

    root: str
    indices: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)

    @abstractmethod
    def open(self, index: int) -> Image:
        """Open an image. Pillow decodes it when its pixels are used."""

    def name(self, index: int) -> str:
        """Return the name of an image for messages."""
        return f"{self.root}, image {self.indices[index]}"

    def select(self, indices: Indices) -> ImageSource:
        """Return a subset of the images."""
        chosen = np.asarray(indices, dtype=np.int64)
        return replace(self, indices=self.indices[chosen], labels=self.labels[chosen])

    def size(self, index: int) -> Size:
        """Return height and width of an image after applying its EXIF orientation, without decoding it.

        Raises:
            DataError: if the file is missing or not an image.
        """
        try:
            with self.open(index) as image:
                return _displayed_size(image)
        except Exception as error:  # Pillow raises many types for a file that is not an image
            raise DataError(f"cannot read the image {self.name(index)}: {type(error).__name__}: {error}.") from None

    def read(self, index: int, size: Size | None = None) -> Tensor:
        """Decode an image.

        Args:
            index: its index.
            size: height and width for which its objects are annotated; None for any. The EXIF orientation is applied, as by
                viewers and OpenCV, unless only the image without it has this size.

        Returns:
            uint8 pixels (3, h, w).

        Raises:
            ReadError: if the image no longer exists, or cannot be decoded.
            DataError: if its size is wrong.
        """
        from PIL import ImageOps

        try:
            with self.open(index) as image:
                sizes = _displayed_size(image), (image.height, image.width)
                is_oriented = size is None or size not in sizes or size == sizes[0]
                pixels = torch.from_numpy(to_pixels(to_rgb(ImageOps.exif_transpose(image) if is_oriented else image)))
        except Exception as error:  # Pillow raises many types for a file that is not an image, or is too large
            raise ReadError(
                f"cannot decode {self.name(index)}: {type(error).__name__}: {error}. Restore it and run again to resume."
            ) from None
        check_size(self.name(index), pixels, size)
        return pixels


def check_size(name: str, pixels: Tensor, size: Size | None) -> None:
    """Check that an image has the size for which its objects are annotated.

    Raises:
        DataError: if it does not.
    """
    height, width = pixels.shape[1:]
    if size is not None and (height, width) != size:
        raise DataError(
            f"{name} must have the {size[1]} × {size[0]} pixels of its annotations; got {width} × {height}. "
            "Correct the annotations, or use the images for which they were made."
        )


def _displayed_size(image: Image) -> Size:
    is_rotated = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
    return (image.width, image.height) if is_rotated else (image.height, image.width)


@dataclass(frozen=True, eq=False)
class ImageFiles(ImageSource):
    """Image files of a folder.

    Attributes:
        files: the paths of all files relative to the folder. An array, because worker processes would copy the memory of a list:
            reading a Python object writes its reference count.
    """

    files: npt.NDArray[np.bytes_]

    @classmethod
    def from_paths(cls, root: Path, paths: Iterable[str | Path], labels: Sequence[int] | None = None) -> ImageFiles:
        """Return the files at paths relative to a folder."""
        files = np.array([os.fsencode(path) for path in paths], dtype=np.bytes_)
        return cls(str(root.absolute()), *_count(len(files), labels), files)

    def open(self, index: int) -> Image:
        """Open an image; see `ImageSource`."""
        from PIL import Image

        return Image.open(self.name(index))

    def name(self, index: int) -> str:
        """Return the path of an image."""
        return str(Path(self.root) / os.fsdecode(self.files[self.indices[index]]))


@dataclass(frozen=True, eq=False)
class EncodedImages(ImageSource):
    """The contents of image files, in memory.

    Attributes:
        content: the bytes of all images.
    """

    content: Ragged

    @classmethod
    def from_bytes(cls, root: str, content: Array, offsets: Array) -> EncodedImages:
        """Return images of one array of bytes; `offsets` has the start of each image, and the end of the last one."""
        return cls(root, *_count(len(offsets) - 1), Ragged(content, offsets.astype(np.int64)))

    def open(self, index: int) -> Image:
        """Open an image; see `ImageSource`."""
        from PIL import Image

        return Image.open(io.BytesIO(self.content[self.indices[index]].tobytes()))


@dataclass(frozen=True, eq=False)
class DecodedImages(ImageSource):
    """Pixels in memory.

    Attributes:
        images: all images, uint8 (3, h, w) each; a tensor (n, 3, h, w) if they have one size.
    """

    images: Tensor | tuple[Tensor, ...]

    @classmethod
    def from_tensors(cls, images: Tensor | tuple[Tensor, ...], root: str = "tensors") -> DecodedImages:
        """Return images in memory."""
        return cls(root, *_count(len(images)), images)

    def open(self, index: int) -> Image:
        """Return a Pillow image."""
        from PIL import Image

        return Image.fromarray(self.images[self.indices[index]].permute(1, 2, 0).numpy())

    def size(self, index: int) -> Size:
        """Return height and width of an image."""
        height, width = self.images[self.indices[index]].shape[1:]
        return height, width

    def read(self, index: int, size: Size | None = None) -> Tensor:
        """Return the pixels of an image."""
        pixels = self.images[self.indices[index]]
        check_size(self.name(index), pixels, size)
        return pixels


def _count(count: int, labels: Sequence[int] | None = None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the indices and the labels of a complete sequence of images."""
    return np.arange(count), np.zeros(count, np.int64) if labels is None else np.array(labels, np.int64)


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
