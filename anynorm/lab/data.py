"""Data sets in the files of their own distributions, as uint8 images (n, c, h, w) and labels (n,).

They are looked for under $ANYNORM_DATA, or in the cache directory of the user where that is not set:

    mnist/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz
    cifar-10-batches-bin/{data_batch_1..5,test_batch}.bin

`digits`, 1797 images of 8 × 8, comes with scikit-learn and needs no file.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anynorm.errors import DataError

Labelled = tuple[Tensor, Tensor]
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def data_root() -> Path:
    """Give the directory that data sets lie in."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "anynorm"
    return Path(os.environ.get("ANYNORM_DATA", default))


def found(pattern: str) -> Path:
    """Find a file under the data directory, or say where it is to be put."""
    path = next(iter(sorted(data_root().glob(pattern))), None)
    if path is None:
        raise DataError(f"There is no {pattern} under {data_root()}. Put it there, or set ANYNORM_DATA to where it lies.")
    return path


def mnist(split: str) -> Labelled:
    """Read the 60 000 `train` or 10 000 `test` images of MNIST."""
    part = {"train": "train", "test": "t10k"}[split]
    return _idx(found(f"mnist/{part}-images-idx3-ubyte.gz")).unsqueeze(1), _idx(
        found(f"mnist/{part}-labels-idx1-ubyte.gz")
    ).long()


def _idx(path: Path) -> Tensor:
    """Read a file of the idx format: two zeros, the type 8 (uint8), the rank, the sizes as big-endian int32, the values."""
    try:
        raw = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}. Fetch it again.") from None
    rank = raw[3] if raw[:3] == b"\x00\x00\x08" else 0
    sizes = np.frombuffer(raw, ">i4", rank, 4)
    if not rank or len(raw) != 4 + 4 * rank + int(np.prod(sizes)):
        raise DataError(f"{path} is no whole idx file of bytes. Fetch it again.")
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(sizes).copy())


def cifar10(split: str) -> Labelled:
    """Read the 50 000 `train` or 10 000 `test` images of CIFAR-10 (binary version)."""
    names = {"test": ["test_batch.bin"], "train": [f"data_batch_{k}.bin" for k in range(1, 6)]}[split]
    parts = []
    for name in names:
        raw = np.fromfile(found(f"cifar-10-batches-bin/{name}"), np.uint8)
        if len(raw) != 10000 * 3073:
            raise DataError(f"{name} of CIFAR-10 has {len(raw)} bytes instead of 30730000. Fetch it again.")
        parts.append(raw.reshape(10000, 3073))
    rows = torch.from_numpy(np.concatenate(parts))
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long()


def digits() -> Labelled:
    """Give the 1797 digits that come with scikit-learn, their 17 grey values spread over 0 to 255."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError("The digits need scikit-learn: pip install 'anynorm[lab]'.") from None
    bunch = load_digits()
    images = torch.from_numpy(bunch.images * 255 / 16).round().to(torch.uint8)
    return images.unsqueeze(1), torch.from_numpy(bunch.target).long()
