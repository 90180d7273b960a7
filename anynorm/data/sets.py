"""Data sets in the files of their own distributions, as uint8 images (n, c, h, w) and labels (n,).

    mnist/  fashion-mnist/      {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz
    cifar-10-batches-bin/       {data_batch_1..5,test_batch}.bin
    cifar-100-binary/           {train,test}.bin

`digits`, 1797 images of 8 × 8, comes with scikit-learn and needs no file.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anynorm.data.download import Source, fetched
from anynorm.errors import DataError

Labelled = tuple[Tensor, Tensor]
_PARTS = {"train": "train", "test": "t10k"}
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_MD5 = {
    "mnist/train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "mnist/train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "mnist/t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "mnist/t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    "fashion-mnist/train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "fashion-mnist/train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "fashion-mnist/t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "fashion-mnist/t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
_CIFAR10 = Source(_CIFAR + "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-binary.tar.gz")
_CIFAR100 = Source(_CIFAR + "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary.tar.gz")


def mnist(split: str) -> Labelled:
    """Read the 60 000 `train` or 10 000 `test` images of MNIST."""
    return _idx_pair("mnist", _MNIST, split)


def fashion_mnist(split: str) -> Labelled:
    """Read the 60 000 `train` or 10 000 `test` images of Fashion-MNIST."""
    return _idx_pair("fashion-mnist", _FASHION, split)


def _idx_pair(folder: str, address: str, split: str) -> Labelled:
    names = [f"{_PARTS[split]}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
    paths = [fetched(f"{folder}/{name}", Source(address + name, _MD5[f"{folder}/{name}"], f"{folder}/{name}")) for name in names]
    images, labels = (_idx(path) for path in paths)
    return images.unsqueeze(1), labels.long()


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
    rows = torch.cat([_rows(fetched(f"cifar-10-batches-bin/{name}", _CIFAR10), 1, 10000) for name in names])
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long()


def cifar100(split: str) -> Labelled:
    """Read the 50 000 `train` or 10 000 `test` images of CIFAR-100 (binary version), with their fine labels."""
    rows = _rows(fetched(f"cifar-100-binary/{split}.bin", _CIFAR100), 2, {"train": 50000, "test": 10000}[split])
    return rows[:, 2:].reshape(-1, 3, 32, 32), rows[:, 1].long()


def _rows(path: Path, labels: int, count: int) -> Tensor:
    raw, row = np.fromfile(path, np.uint8), labels + 3072
    if len(raw) != count * row:
        raise DataError(f"{path} has {len(raw)} bytes instead of {count * row}. Fetch it again.")
    return torch.from_numpy(raw.reshape(count, row))


def digits() -> Labelled:
    """Give the 1797 digits that come with scikit-learn, their 17 grey values spread over 0 to 255."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError("The digits need scikit-learn: pip install 'anynorm[lab]'.") from None
    bunch = load_digits()
    images = torch.from_numpy(bunch.images * 255 / 16).round().to(torch.uint8)
    return images.unsqueeze(1), torch.from_numpy(bunch.target).long()
