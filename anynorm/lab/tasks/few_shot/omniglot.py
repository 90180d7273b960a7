"""Omniglot (Lake et al. 2015): 1623 characters of 50 alphabets, each drawn by 20 people.

    omniglot/images_background.zip      964 characters of 30 alphabets, 105 × 105 pixels, black ink
    omniglot/images_evaluation.zip      659 characters of 20 alphabets
    omniglot/omniglot_28x28.npz         both as arrays: `x` (28 × 28 pixels), `char`, `char_names`, `char_is_background`

The .npz file is used if it exists. Missing archives are downloaded; see `download`. Images are returned as uint8
(n, 1, 28, 28) with white ink (255) on black.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.lab.data.download import RemoteFile, data_dir, fetch_file
from anynorm.lab.data.npz import load_npz

ARRAYS = "omniglot/omniglot_28x28.npz"
IMAGE_SIZE = 28
_URL = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"
_MD5 = {"background": "68d2efa1b9178cc56df9314c21c6e718", "evaluation": "6b91aef0f799c5bb55b94e3f2daec811"}


class Characters(NamedTuple):
    """Images of characters.

    Attributes:
        images: uint8 (n, 1, 28, 28).
        labels: the character of each image, from 0.
        names: "ALPHABET/CHARACTER" of each label.
    """

    images: Tensor
    labels: Tensor
    names: list[str]


def omniglot(part: str) -> Characters:
    """Read the characters of a part of Omniglot.

    Args:
        part: `background` or `evaluation`.

    Raises:
        DataError: if the files cannot be downloaded or read.
    """
    if (path := data_dir() / ARRAYS).exists():
        return _read_arrays(path, part)
    name = f"omniglot/images_{part}.zip"
    return _read_archive(fetch_file(name, RemoteFile(f"{_URL}images_{part}.zip", _MD5[part], name)))


def _read_arrays(path: Path, part: str) -> Characters:
    advice = " Delete it to download the archives of Omniglot."
    arrays = load_npz(path, "x", "char", "char_names", "char_is_background", advice=advice)
    images, char, names, is_background = arrays.values()
    classes = np.flatnonzero(is_background == (part == "background"))
    number = np.full(len(names), -1)
    number[classes] = np.arange(len(classes))
    chosen = number[char] >= 0
    labels = torch.from_numpy(number[char][chosen])
    return Characters(torch.from_numpy(images[chosen]).unsqueeze(1), labels, [str(names[k]) for k in classes])


def _read_archive(path: Path) -> Characters:
    """Read a .zip file of PART/ALPHABET/CHARACTER/IMAGE.png."""
    images, characters = [], []
    try:
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                if name.endswith(".png") and not name.startswith("__"):
                    images.append(_decode(archive.read(name)))
                    characters.append("/".join(PurePosixPath(name).parts[-3:-1]))
    except Exception as error:  # zipfile and Pillow raise many types for a damaged file
        raise DataError(f"cannot read {path}: {type(error).__name__}: {error}. Delete it and run again to download it.") from None
    if not images:
        raise DataError(f"{path} must contain images ALPHABET/CHARACTER/IMAGE.png; got none. Delete it and run again.")
    names = sorted(set(characters))
    number = {name: label for label, name in enumerate(names)}
    return Characters(torch.from_numpy(np.stack(images)), torch.tensor([number[name] for name in characters]), names)


def _decode(content: bytes) -> np.typing.NDArray[np.uint8]:
    """Return an image as uint8 (1, 28, 28), white ink on black."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        small = image.convert("L").resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BILINEAR)
        return 255 - np.asarray(small, dtype=np.uint8)[None]
