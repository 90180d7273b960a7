"""Readers of data sets' own files; files that are missing or broken are named."""

import gzip
import struct

import numpy as np
import pytest
import torch

import anynorm
from anynorm.lab.data.sets import cifar10, digits, mnist
from tests.real import needs_shared, unpacked


def idx(array):
    return b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape) + array.tobytes()


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(tmp_path))
    return tmp_path


def unreachable(*_, **__):
    raise OSError("no network")


def test_idx_files_are_read(root, monkeypatch):
    (root / "mnist").mkdir()
    images, labels = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4), np.array([7, 1], np.uint8)
    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    with pytest.raises(anynorm.DataError, match=r"t10k-images-idx3-ubyte\.gz cannot be downloaded: .* ANYNORM_DATA"):
        mnist("test")
    (root / "mnist" / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
    path = root / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(idx(labels)))
    x, y = mnist("test")
    assert torch.equal(x, torch.from_numpy(images)[:, None])
    assert y.tolist() == [7, 1]
    for broken, said in (
        (gzip.compress(idx(labels))[:-9], "cannot be read"),
        (gzip.compress(idx(labels)[:-1]), "no whole idx file"),
        (gzip.compress(b"GIF89a"), "no whole idx file"),
        (b"not gzip", "cannot be read"),
    ):
        path.write_bytes(broken)
        with pytest.raises(anynorm.DataError, match=said):
            mnist("test")


def test_cifar_files_are_read(root):
    folder = root / "cifar-10-batches-bin"
    folder.mkdir()
    rows = np.zeros((10000, 3073), np.uint8)
    rows[3, 0], rows[3, 1 + 1024 + 33] = 9, 200
    rows.tofile(folder / "test_batch.bin")
    x, y = cifar10("test")
    assert x.shape == (10000, 3, 32, 32)
    assert int(y[3]) == 9
    assert int(x[3, 1, 1, 1]) == 200
    rows[:5].tofile(folder / "test_batch.bin")
    with pytest.raises(anynorm.DataError, match=r"test_batch\.bin has 15365 bytes instead of 30730000"):
        cifar10("test")


def test_digits_come_with_scikit_learn():
    x, y = digits()
    assert x.shape == (1797, 1, 8, 8)
    assert x.dtype == torch.uint8
    assert int(x.max()) == 255
    assert y.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


@needs_shared
@pytest.mark.slow
def test_the_real_files_have_the_known_counts(monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(unpacked("mnist", "cifar10")))
    x, y = mnist("train")
    assert x.shape == (60000, 1, 28, 28)
    assert y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert float(x.double().mean() / 255) == pytest.approx(0.1307, abs=1e-4)
    x, y = cifar10("test")
    assert y.bincount().tolist() == [1000] * 10
