"""UT-Interaction: 120 videos of two people in 20 sequences, 6 classes, in four folds.

The file ut_interaction/*.npz of the data directory has the arrays `clips` (AVIF sequences as bytes, one after another),
`offsets`, `labels`, `sequence`, `names` and `classes`.
"""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.lab.data.download import find_file
from anynorm.lab.data.npz import load_npz
from anynorm.lab.tasks.video.videos import MemoryVideo, Splits, Video

NUM_FOLDS = 4
"""Fold k tests on the sequences k + 1, k + 5, …: five of 20."""
_FILE = "ut_interaction/*.npz"


def read_ut_interaction(name: str) -> Splits:
    """Read all videos and split them by their sequence; see `NUM_FOLDS`.

    Args:
        name: ut_interaction/FOLD, with the fold 0 to 3.

    Returns:
        Training videos, test videos, and the names of the classes.

    Raises:
        DataError: if the file is missing, lacks an array, or Pillow is too old to decode AVIF.
    """
    path, fold = find_file(_FILE), int(name.rpartition("/")[2])
    arrays = load_npz(path, "clips", "offsets", "labels", "sequence", "names", "classes")
    splits: tuple[list[Video], list[Video]] = ([], [])
    for index, (start, stop) in enumerate(pairwise(arrays["offsets"].tolist())):
        title = str(arrays["names"][index])
        video = MemoryVideo(decode_sequence(arrays["clips"][start:stop].tobytes(), title), int(arrays["labels"][index]), title)
        splits[int(arrays["sequence"][index] - 1) % NUM_FOLDS == fold].append(video)
    return *splits, tuple(arrays["classes"].tolist())


def decode_sequence(content: bytes, name: str) -> Tensor:
    """Decode an animated image (AVIF, GIF, WebP) to frames, uint8 (t, 3, h, w).

    Raises:
        DataError: if the content cannot be decoded.
    """
    import PIL
    from PIL import Image, features

    if not features.check("avif"):
        raise DataError(f"{name} is an AVIF sequence, which needs Pillow 11.3 or later with AVIF; got {PIL.__version__}.")
    frames = []
    try:
        with Image.open(io.BytesIO(content)) as image:
            for index in range(getattr(image, "n_frames", 1)):
                image.seek(index)
                frames.append(np.asarray(image.convert("RGB")))
    except Exception as error:  # Pillow raises many types for damaged content
        raise DataError(f"cannot decode {name}: {type(error).__name__}: {error}.") from None
    return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2).contiguous()
