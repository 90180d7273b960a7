"""Images without labels, decoded when they are used: the content and the styles of style transfer.

    folder:PATH   a folder of images at any depth; PATH/train and PATH/test (or val, valid) if it has them, else a random split
    npz:PATH      a .npz file of encoded images: `bytes`, one after another, and `offsets` (n + 1); a random split
    digits …      a data set of `anynorm.lab.data`, without its labels

A path is relative to the working directory or to the data directory ($ANYNORM_DATA). The random split is the same in every run.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from anynorm.errors import DataError
from anynorm.io.inputs import IMAGE_SUFFIXES
from anynorm.lab.data.datasets import load_in_memory
from anynorm.lab.data.download import find_path
from anynorm.lab.data.folder import find_split_folders, split_indices
from anynorm.lab.data.image_sources import DecodedImages, EncodedImages, ImageFiles, ImageSource
from anynorm.lab.data.names import find_folder
from anynorm.lab.data.npz import load_npz
from anynorm.lab.data.stream import leave_out_unreadable

Splits = tuple[ImageSource, ImageSource]
"""Training and test images."""


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
        splits = [_find_images(name, split) for split in find_split_folders(find_folder(name, "images"))]
    elif kind == "npz":
        splits = [_read_npz(name, find_path(path))]
    else:
        data = load_in_memory(name)
        splits = [DecodedImages.from_tensors(images.expand(-1, 3, -1, -1), name) for images, _ in (data.train, data.test)]
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


def _find_images(name: str, path: Path) -> ImageSource:
    files = [file for file in sorted(path.rglob("*")) if file.suffix.lower() in IMAGE_SUFFIXES]
    if not files:
        raise DataError(f"{name} must contain images ({' '.join(IMAGE_SUFFIXES)}); got none in {path}.")
    return ImageFiles.from_paths(path, [file.relative_to(path) for file in files])


def _read_npz(name: str, path: Path) -> ImageSource:
    if not path.is_file():
        raise DataError(f"{name} must be an existing .npz file; {path.absolute()} does not exist.")
    arrays = load_npz(path, "bytes", "offsets")
    return EncodedImages.from_bytes(str(path), arrays["bytes"], arrays["offsets"])
