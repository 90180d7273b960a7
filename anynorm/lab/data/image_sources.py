"""Images that are decoded when they are used: files of a folder, encoded bytes in memory, or pixels in memory.

    ImageFiles      paths, for data of any size
    EncodedImages   the bytes of PNG, JPEG or WebP files, one after another
    DecodedImages   uint8 tensors

Each has `read(index, size)`, which returns uint8 pixels (3, h, w), and can be sent to worker processes. Gray images are repeated
in three channels, the alpha channel is discarded, and values of 16 bits are divided by 257.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from anynorm.errors import DataError, ReadError
from anynorm.lab.data.transforms import to_pixels, to_rgb

if TYPE_CHECKING:
    from PIL.Image import Image

Array = npt.NDArray[Any]
Size = tuple[int, int]
"""Height and width, in pixels."""
_ORIENTATION = 0x0112
"""The EXIF tag of the orientation; values 5 to 8 swap height and width."""


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of different lengths in one array: row i is values[offsets[i] : offsets[i + 1]]."""

    values: Array
    offsets: npt.NDArray[np.int64]

    @classmethod
    def from_rows(cls, rows: Iterable[Array], empty: Array) -> Ragged:
        """Concatenate rows; `empty` is an empty array with the dtype of the rows."""
        arrays = list(rows)
        offsets = np.cumsum([0, *(len(array) for array in arrays)]).astype(np.int64)
        return cls(np.concatenate([empty, *arrays]), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Array:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def select(self, indices: Iterable[int]) -> Ragged:
        """Return some of the rows."""
        return Ragged.from_rows([self[index] for index in indices], self.values[:0])


class ImageSource:
    """A sequence of images that Pillow opens."""

    def __len__(self) -> int:
        raise NotImplementedError

    def open(self, index: int) -> Image:
        """Open an image. Pillow decodes it when its pixels are used."""
        raise NotImplementedError

    def name(self, index: int) -> str:
        """Return the name of an image for messages."""
        raise NotImplementedError

    def select(self, indices: Sequence[int]) -> ImageSource:
        """Return some of the images."""
        raise NotImplementedError

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
        root: the folder.
        files: their paths relative to the folder. An array, because worker processes would copy the memory of a list: reading a
            Python object writes its reference count.
    """

    root: str
    files: npt.NDArray[np.bytes_]

    @classmethod
    def from_paths(cls, root: Path, paths: Iterable[str]) -> ImageFiles:
        """Return the files at paths relative to a folder."""
        return cls(str(root.absolute()), np.array([os.fsencode(path) for path in paths], dtype=np.bytes_))

    def __len__(self) -> int:
        return len(self.files)

    def open(self, index: int) -> Image:
        """Open an image; see `ImageSource`."""
        from PIL import Image

        return Image.open(self.name(index))

    def name(self, index: int) -> str:
        """Return the path of an image."""
        return str(Path(self.root) / os.fsdecode(self.files[index]))

    def select(self, indices: Sequence[int]) -> ImageFiles:
        """Return some of the images."""
        return ImageFiles(self.root, self.files[np.asarray(indices, dtype=np.int64)])


@dataclass(frozen=True, eq=False)
class EncodedImages(ImageSource):
    """The contents of image files, in memory.

    Attributes:
        content: the bytes of each image.
        names: their names for messages.
    """

    content: Ragged
    names: npt.NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.content)

    def open(self, index: int) -> Image:
        """Open an image; see `ImageSource`."""
        from PIL import Image

        return Image.open(io.BytesIO(self.content[index].tobytes()))

    def name(self, index: int) -> str:
        """Return the name of an image."""
        return str(self.names[index])

    def select(self, indices: Sequence[int]) -> EncodedImages:
        """Return some of the images."""
        return EncodedImages(self.content.select(indices), self.names[np.asarray(indices, dtype=np.int64)])


@dataclass(frozen=True, eq=False)
class DecodedImages(ImageSource):
    """Pixels in memory: uint8 tensors (3, h, w)."""

    images: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        """Return the index of an image as its name."""
        return f"image {index}"

    def size(self, index: int) -> Size:
        """Return height and width of an image."""
        height, width = self.images[index].shape[1:]
        return height, width

    def read(self, index: int, size: Size | None = None) -> Tensor:
        """Return the pixels of an image."""
        check_size(self.name(index), self.images[index], size)
        return self.images[index]

    def select(self, indices: Sequence[int]) -> DecodedImages:
        """Return some of the images."""
        return DecodedImages(tuple(self.images[index] for index in indices))
