"""Datasets by name: the readers of their original files, reduced sizes, custom factories; missing or damaged files are named."""

import gzip
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch

import anynorm
from anynorm.lab.data import load_dataset
from anynorm.lab.data.readers import cifar10, digits, mnist
from tests.real import needs_shared, unpack_datasets


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
    monkeypatch.setattr("requests.get", unreachable)
    with pytest.raises(
        anynorm.DataError, match=r"cannot download http.*/t10k-images-idx3-ubyte\.gz: no network.*put the file at.*ANYNORM_DATA"
    ):
        mnist("test")
    (root / "mnist" / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
    path = root / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(idx(labels)))
    x, y = mnist("test")
    assert torch.equal(x, torch.from_numpy(images)[:, None])
    assert y.tolist() == [7, 1]
    for damaged, message in (
        (gzip.compress(idx(labels))[:-9], "cannot read"),
        (gzip.compress(idx(labels)[:-1]), "must be a complete idx file"),
        (gzip.compress(idx(labels)[:6]), "must be a complete idx file"),
        (gzip.compress(b"\x00\x00\x08"), "must be a complete idx file"),
        (gzip.compress(b"GIF89a"), "must be a complete idx file"),
        (b"not gzip", "cannot read"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(anynorm.DataError, match=rf"{message}.* Delete it and run again to download it"):
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
    with pytest.raises(anynorm.DataError, match=r"test_batch\.bin must have 30730000 bytes; got 15365"):
        cifar10("test")


def test_digits_are_part_of_scikit_learn():
    x, y = digits()
    assert x.shape == (1797, 1, 8, 8)
    assert x.dtype == torch.uint8
    assert int(x.max()) == 255
    assert y.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


@needs_shared
@pytest.mark.slow
def test_the_real_files_have_the_known_counts(monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(unpack_datasets("mnist", "cifar10")))
    x, y = mnist("train")
    assert x.shape == (60000, 1, 28, 28)
    assert y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert float(x.double().mean() / 255) == pytest.approx(0.1307, abs=1e-4)
    x, y = cifar10("test")
    assert y.bincount().tolist() == [1000] * 10


def test_standardized_images_have_mean_0_and_variance_1_and_test_batches_are_the_test_split_in_order():
    data = load_dataset("digits")
    x = data.standardize(data.train[0])
    assert float(x.mean()) == pytest.approx(0, abs=1e-4)
    assert float(x.std()) == pytest.approx(1, abs=1e-3)
    batches = list(data.test_batches(100))
    assert [len(labels) for _, labels in batches] == [100, 100, 100, 100, 49]
    assert torch.equal(torch.cat([images for images, _ in batches]), data.standardize(data.test[0]))
    assert torch.equal(torch.cat([labels for _, labels in batches]), data.test[1])


def test_images_are_standardized_on_their_own_device():
    x = load_dataset("digits").standardize(torch.zeros(2, 1, 8, 8, dtype=torch.uint8, device="meta"))
    assert (x.device.type, x.dtype, x.shape) == ("meta", torch.float32, (2, 1, 8, 8))


def custom():
    return (np.zeros((6, 1, 4, 4), np.uint8), [0, 1, 2, 0, 1, 2]), (
        torch.ones(2, 1, 4, 4, dtype=torch.uint8),
        torch.tensor([0, 1]),
    )


def three_dimensional():
    return (np.zeros((6, 4, 4), np.uint8), [0] * 6), (np.zeros((6, 4, 4), np.uint8), [0] * 6)


def one_class():
    images = np.zeros((6, 1, 4, 4), np.uint8)
    return (images, [0] * 6), (images, [0] * 6)


def test_custom_factories_are_called_and_wrong_names_are_refused():
    assert load_dataset("tests.lab.data.test_datasets:custom").shape == (1, 4, 4, 3)
    for name, message in (
        ("tests.lab.data.test_datasets:three_dimensional", r"must return images \(n, c, h, w\).*; got images \(6, 4, 4\)"),
        ("tests.lab.data.test_datasets:one_class", "must have at least 2 classes; got 1"),
        ("builtins:int", r"must return \(images, labels\), \(images, labels\): train and test; got int"),
        (
            "minst",
            r"unknown dataset 'minst'\. Did you mean mnist.*Usable: digits .* stream:PATH hf:NAME package\.module:factory",
        ),
    ):
        with pytest.raises(anynorm.DataError, match=message):
            load_dataset(name)


def test_importing_data_loads_no_optional_package():
    modules = "anynorm.lab.data, anynorm.lab.data.augment, anynorm.lab.models, anynorm.io.inputs, anynorm.draw.descriptions"
    code = f"import sys, {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"sklearn", "scipy", "PIL", "datasets", "pandas", "pyarrow", "pooch", "requests", "rich", "matplotlib"}
    assert not heavy & set(done.stdout.split())
