"""Names of data sets: a built-in name, PREFIX:PATH, or package.module:factory.

Each problem has a table of its built-in names and a table of its prefixes, and resolves a name by them:

    >>> resolve("coco:photos", "data set of objects", {"nuclei": "reader of nuclei"}, {"coco": "reader of COCO"}, "factory")
    'reader of COCO'
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from anynorm.errors import DataError, unknown_name
from anynorm.lab.data.download import find_path

FILE_PREFIXES = (
    "folder", "stream", "npz",  # images
    "coco", "voc", "yolo", "masks",  # objects
    "camvid", "cityscapes", "ade20k",  # classes of pixels
    "frames", "videos",
)  # fmt: skip
"""The prefixes whose PATH is a folder or a file, of all problems. A run depends on the files (`training.config.hash_sources`)."""
Reader = TypeVar("Reader")


def resolve(name: str, what: str, built_in: Mapping[str, Reader], prefixes: Mapping[str, Reader], factory: Reader) -> Reader:
    """Return the reader of a data set.

    Args:
        name: the name of the data set.
        what: what is read, for messages.
        built_in: readers by name.
        prefixes: readers by the prefix of PREFIX:PATH.
        factory: the reader of package.module:factory.

    Raises:
        DataError: if the name is unknown.
    """
    prefix, colon, _ = name.partition(":")
    if name in built_in:
        return built_in[name]
    if not colon:
        raise DataError(unknown_name(what, name, built_in, *(f"{each}:PATH" for each in prefixes), "package.module:factory"))
    return prefixes.get(prefix, factory)


def path_of(name: str) -> Path | None:
    """Return the folder or file of PREFIX:PATH, relative to the working or the data directory; None for another name.

    >>> str(path_of("folder:photos")), path_of("cifar10"), path_of("package.module:factory")
    ('photos', None, None)
    """
    prefix, colon, path = name.partition(":")
    return find_path(path) if colon and prefix in FILE_PREFIXES else None


def find_folder(name: str, contents: str = "") -> Path:
    """Return the folder of PREFIX:PATH.

    Args:
        name: the name of the data set.
        contents: what the folder must have, for the message.

    Raises:
        DataError: if it does not exist.
    """
    path = name.partition(":")[2]
    folder = find_path(path)
    if not path or not folder.is_dir():
        wanted = f"an existing folder with {contents}" if contents else "an existing folder"
        raise DataError(f"{name} must be {wanted}; {folder.absolute()} does not exist.")
    return folder
