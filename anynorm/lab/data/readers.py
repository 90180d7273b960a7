"""Readers of datasets in their original file formats. Each returns uint8 images (n, c, h, w) and labels (n,).

    mnist/  fashion-mnist/      {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz
    cifar-10-batches-bin/       {data_batch_1..5,test_batch}.bin
    cifar-100-binary/           {train,test}.bin

Missing files are downloaded; see `download`. `digits` (1797 images of 8 × 8 pixels) is part of scikit-learn.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.lab.data.download import RemoteFile, fetch_file

Split = tuple[Tensor, Tensor]
_FILE_PREFIX = {"train": "train", "test": "t10k"}
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
_CIFAR10 = RemoteFile(_CIFAR + "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-binary.tar.gz")
_CIFAR100 = RemoteFile(_CIFAR + "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary.tar.gz")


def mnist(split: str) -> Split:
    """Read the 60 000 `train` or 10 000 `test` images of MNIST."""
    return _read_idx_pair("mnist", _MNIST, split)


def fashion_mnist(split: str) -> Split:
    """Read the 60 000 `train` or 10 000 `test` images of Fashion-MNIST."""
    return _read_idx_pair("fashion-mnist", _FASHION, split)


def _read_idx_pair(folder: str, base_url: str, split: str) -> Split:
    """Read the images and the labels of a split, each from an idx file."""
    paths = []
    for kind in ("images-idx3", "labels-idx1"):
        name = f"{_FILE_PREFIX[split]}-{kind}-ubyte.gz"
        path = f"{folder}/{name}"
        paths.append(fetch_file(path, RemoteFile(base_url + name, _MD5[path], path)))
    images, labels = (_read_idx(path) for path in paths)
    return images.unsqueeze(1), labels.long()


def _read_idx(path: Path) -> Tensor:
    """Read a file in idx format: two zeros, the type 8 (uint8), the rank, the sizes as big-endian int32, the values."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}. Delete it and run again to download it.") from None
    rank = content[3] if len(content) > 3 and content[:3] == b"\x00\x00\x08" else 0
    header = 4 + 4 * rank
    sizes = [int.from_bytes(content[start : start + 4], "big") for start in range(4, header, 4)]
    if not rank or len(content) != header + math.prod(sizes):
        raise DataError(
            f"{path} must be a complete idx file of uint8; got {len(content)} bytes of something else. "
            "Delete it and run again to download it."
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header).reshape(sizes).copy())


def cifar10(split: str) -> Split:
    """Read the 50 000 `train` or 10 000 `test` images of CIFAR-10 (binary version)."""
    names = {"test": ["test_batch.bin"], "train": [f"data_batch_{k}.bin" for k in range(1, 6)]}[split]
    rows = torch.cat([_read_rows(fetch_file(f"cifar-10-batches-bin/{name}", _CIFAR10), 1, 10000) for name in names])
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long()


def cifar100(split: str) -> Split:
    """Read the 50 000 `train` or 10 000 `test` images of CIFAR-100 (binary version), with their fine labels."""
    rows = _read_rows(fetch_file(f"cifar-100-binary/{split}.bin", _CIFAR100), 2, {"train": 50000, "test": 10000}[split])
    return rows[:, 2:].reshape(-1, 3, 32, 32), rows[:, 1].long()


def _read_rows(path: Path, num_labels: int, count: int) -> Tensor:
    """Read rows of `num_labels` labels and 3 × 32 × 32 pixels, one byte each."""
    content, row_size = np.fromfile(path, np.uint8), num_labels + 3072
    if len(content) != count * row_size:
        raise DataError(
            f"{path} must have {count * row_size} bytes; got {len(content)}. Delete it and run again to unpack or download it."
        )
    return torch.from_numpy(content.reshape(count, row_size))


def digits() -> Split:
    """Read the 1797 digits of scikit-learn; their 17 gray values are scaled to 0 … 255.

    Raises:
        DataError: if scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError("the dataset digits needs scikit-learn: pip install 'anynorm[lab]'.") from None
    bunch = load_digits()
    images = torch.from_numpy(bunch.images * 255 / 16).round().to(torch.uint8)
    return images.unsqueeze(1), torch.from_numpy(bunch.target).long()
