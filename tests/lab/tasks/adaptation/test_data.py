"""Data sets of several domains: readers of their own files, pairs of a labeled source and an unlabeled target, and errors."""

import bz2
import gzip
import io
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import anynorm
from anynorm.lab.data import load_dataset
from anynorm.lab.data.domain_readers import mnist_m, usps
from anynorm.lab.tasks.adaptation.data import Domain, load_domain, load_pair, make_pair
from tests.lab.data.test_datasets import idx, root, unreachable

__all__ = ["root"]
GENERATOR = np.random.default_rng(0)


def images(count, channels=1, size=8):
    return torch.from_numpy(GENERATOR.integers(0, 256, (count, channels, size, size)).astype(np.uint8))


def domain(name, labels, classes, **shape):
    split = images(len(labels), **shape), torch.tensor(labels)
    return Domain(name, split, split, classes)


# Readers --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def usps_pixels(root):
    (root / "usps").mkdir()
    return GENERATOR.integers(0, 2001, (3, 256)), np.array([3, 0, 9])


def libsvm(pixels, labels):
    """Write lines LABEL INDEX:VALUE …, with labels from 1 and values in [−1, 1]."""
    lines = [
        f"{label + 1} " + " ".join(f"{k}:{value:.6f}" for k, value in enumerate(row / 1000 - 1, 1))
        for row, label in zip(pixels, labels, strict=True)
    ]
    return bz2.compress("\n".join(lines).encode())


def test_the_three_forms_of_usps_have_the_same_images(root, usps_pixels, monkeypatch):
    pixels, labels = usps_pixels
    expected = np.round(pixels / 2000 * 255).reshape(3, 1, 16, 16)
    (root / "usps" / "usps.t.bz2").write_bytes(libsvm(pixels, labels))
    read = {"bz2": usps("test")}
    groups = {"test": {"data": pixels / 2000, "target": labels}}

    class File(dict[str, Any]):
        def __init__(self, *_):
            super().__init__(groups)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setitem(sys.modules, "h5py", SimpleNamespace(File=File))
    (root / "usps" / "usps.h5").touch()
    read["h5"] = usps("test")
    packed = {"x_test": pixels.reshape(3, 16, 16).astype(np.uint16), "y_test": labels.astype(np.uint8)}
    np.savez(root / "usps" / "usps_16x16.npz", scale=np.float32(2000), **packed)
    read["npz"] = usps("test")
    for form, (x, y) in read.items():
        assert (x.numpy() == expected).all(), form
        assert y.tolist() == [3, 0, 9], form
        assert x.dtype == torch.uint8, form


def test_missing_and_damaged_files_of_usps_are_named(root, usps_pixels, monkeypatch):
    monkeypatch.setattr("requests.get", unreachable)
    with pytest.raises(anynorm.DataError, match=r"cannot download https://www\.csie\.ntu.*usps\.bz2: no network"):
        usps("train")
    path = root / "usps" / "usps.bz2"
    for content, message in (
        (b"not bz2", r"cannot read .*usps\.bz2.* Delete it and run again"),
        (bz2.compress(b"1 1:0.5 2:0.5"), r"must have 256 values per line; got an array of shape \(1, 2\)"),
        (bz2.compress(b"one 1:0.5"), "cannot read"),
    ):
        path.write_bytes(content)
        with pytest.raises(anynorm.DataError, match=message):
            usps("train")
    path.unlink()
    (root / "usps" / "usps.h5").touch()
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(anynorm.DataError, match=r"usps\.h5 needs h5py: pip install h5py"):
        usps("train")
    (root / "usps" / "usps_16x16.npz").write_bytes(b"no archive")
    with pytest.raises(anynorm.DataError, match=r"usps_16x16\.npz must hold the arrays x_train y_train scale"):
        usps("train")


def encode(arrays):
    """Return images (h, w, 3) as PNG files in one array, with offsets."""
    files = []
    for array in arrays:
        buffer = io.BytesIO()
        Image.fromarray(array).save(buffer, "PNG")
        files.append(np.frombuffer(buffer.getvalue(), np.uint8))
    return {"bytes": np.concatenate(files), "offsets": np.cumsum([0, *map(len, files)]).astype(np.uint32)}


def test_mnist_m_is_the_absolute_difference_of_a_patch_and_a_digit(root):
    (root / "mnist").mkdir()
    digits = GENERATOR.integers(0, 256, (4, 28, 28)).astype(np.uint8)
    (root / "mnist" / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(digits)))
    (root / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.arange(4, dtype=np.uint8))))
    with pytest.raises(anynorm.DataError, match=r"mnist-m needs the photographs of BSDS500: .*\*\.jpg .* Download BSDS500 from"):
        mnist_m("test")
    photo = np.broadcast_to(np.array([10, 100, 250], np.uint8), (40, 50, 3))  # every patch is the same
    (root / "bsds500").mkdir()
    np.savez(root / "bsds500" / "bsds_train_full.npz", **encode([np.ascontiguousarray(photo)] * 2))
    x, y = mnist_m("test")
    assert x.shape == (4, 3, 28, 28)
    assert y.tolist() == [0, 1, 2, 3]
    for channel, value in enumerate((10, 100, 250)):
        assert (x[:, channel].numpy() == abs(value - digits.astype(int))).all()
    assert torch.equal(mnist_m("test")[0], x)


def write_folder(path, classes, color=0, size=(10, 8)):
    for number, name in enumerate(classes):
        (path / name).mkdir(parents=True)
        Image.new("RGB", size, (color, number, 0)).save(path / name / "1.png")


def test_pacs_and_office_31_are_read_from_folders_and_pacs_from_one_file(root):
    write_folder(root / "office31" / "amazon" / "images", ["bike", "mug"], color=5)
    write_folder(root / "pacs" / "photo", ["dog", "elephant"])
    office, pacs = load_domain("office31/amazon", 8), load_domain("pacs/photo", 8)
    assert (office.classes, pacs.classes) == (("bike", "mug"), ("dog", "elephant"))
    assert office.train[0].shape == (2, 3, 8, 8)
    assert office.train[0][:, :2, 0, 0].tolist() == [[5, label] for label in office.train[1]]
    assert sorted(pacs.train[1].tolist()) == [0, 1]
    pictures = [np.full((8, 8, 3), value, np.uint8) for value in (1, 2, 3)]
    indices = {"domain": [1, 0, 1], "label": [1, 0, 0], "domains": ["photo", "sketch"], "classes": ["dog", "elephant"]}
    arrays: Any = encode(pictures) | {key: np.array(value) for key, value in indices.items()}
    np.savez(root / "pacs" / "pacs_64x64.npz", **arrays)
    packed = load_domain("pacs/sketch", 8)
    assert dict(zip(packed.train[0][:, 0, 0, 0].tolist(), packed.train[1].tolist(), strict=True)) == {1: 1, 3: 0}
    assert packed.classes == ("dog", "elephant")


def test_missing_domains_and_files_are_named(root):
    with pytest.raises(anynorm.DataError, match=r"pacs has no domain 'photos'\. Usable: pacs/art_painting .* pacs/sketch"):
        load_domain("pacs/photos")
    with pytest.raises(anynorm.DataError, match=r"office31/dslr must be a folder.*does not exist\. Download Office-31 from"):
        load_dataset("office31/dslr")
    for name in ("stream:photos", "hf:mnist"):
        with pytest.raises(anynorm.DataError, match=rf"reads all images into memory; {name} is decoded .* Use folder:PATH"):
            load_domain(name)


def test_images_of_28_pixels_are_padded_to_32_if_the_size_divides_only_32(root):
    (root / "mnist").mkdir()
    digits = GENERATOR.integers(0, 256, (4, 28, 28)).astype(np.uint8)
    for prefix in ("train", "t10k"):
        (root / "mnist" / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(digits)))
        (root / "mnist" / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.arange(4, dtype=np.uint8))))
    padded = np.pad(digits.astype(float), ((0, 0), (2, 2), (2, 2)), "edge")
    expected = np.round(padded.reshape(4, 16, 2, 16, 2).mean((2, 4)))
    assert (load_dataset("mnist@16").train[0][:, 0].numpy() == expected).all()
    expected = np.round(digits.reshape(4, 14, 2, 14, 2).mean((2, 4)))
    assert (load_dataset("mnist@14").train[0][:, 0].numpy() == expected).all()
    with pytest.raises(anynorm.DataError, match=r"got '20'\. Usable: 1 2 4 7 8 14 16 28 32"):
        load_dataset("mnist@20")


# Pairs ----------------------------------------------------------------------------------------------------------------------


def test_a_pair_has_the_images_of_common_classes_and_no_labels_of_the_target():
    source = domain("a", [0, 1, 2, 2], ("cat", "dog", "owl"))
    target = domain("b", [0, 1, 2, 0], ("ant", "owl", "cat"), channels=3)
    pair = make_pair(source, target)
    assert pair.classes == ("cat", "owl")
    assert pair.source[1].tolist() == [0, 1, 1]
    assert torch.equal(pair.source[0], source.train[0][[0, 2, 3]].expand(-1, 3, -1, -1))  # gray to RGB
    assert torch.equal(pair.target, target.train[0][[1, 2]])
    assert pair.target_test[1].tolist() == [1, 0]
    assert pair.shape == (3, 8, 8, 2)
    x = pair.standardize(pair.source[0])
    assert float(x.mean()) == pytest.approx(0, abs=1e-4)
    selected = pair.select(torch.tensor([2, 0]), torch.tensor([1]))
    assert selected.source[1].tolist() == [1, 0]
    assert torch.equal(selected.target, pair.target[1:])


def test_a_pair_of_folders_is_tested_on_all_images_of_the_target_unless_they_are_split(tmp_path):
    write_folder(tmp_path / "day", ["bike", "car"])
    write_folder(tmp_path / "night" / "train", ["bike", "car", "tram"])
    write_folder(tmp_path / "night" / "test", ["car"], color=9)
    pair = load_pair(f"folder:{tmp_path}/day", f"folder:{tmp_path}/night", 8)
    assert pair.classes == ("bike", "car")
    assert len(pair.target) == 2
    assert (pair.target_test[0][:, 0, 0, 0].tolist(), pair.target_test[1].tolist()) == ([9], [1])
    assert torch.equal(pair.source_test[0], pair.source[0])


def test_the_first_images_of_a_folder_are_of_all_classes_in_every_call(tmp_path):
    for label, name in enumerate(("bike", "car", "tram")):
        (tmp_path / "day" / name).mkdir(parents=True)
        for number in range(20):
            Image.new("RGB", (8, 8), (label, number, 0)).save(tmp_path / "day" / name / f"{number}.png")
    day = load_domain(f"folder:{tmp_path}/day", 8)
    assert set(day.test[1][:12].tolist()) == {0, 1, 2}
    assert torch.equal(day.train[0][:, 0, 0, 0], day.train[1])
    assert len({tuple(image) for image in day.train[0][:, :2, 0, 0].tolist()}) == 60
    assert torch.equal(load_domain(f"folder:{tmp_path}/day", 8).train[0], day.train[0])


def test_pairs_that_cannot_be_adapted_are_refused():
    source, target = domain("a", [0, 1, 0], ("cat", "dog")), domain("b", [0, 1], ("cat", "dog"))
    with pytest.raises(
        anynorm.DataError, match=r"a and b must have at least 2 common classes; got 1\. Classes of a: cat dog; of b"
    ):
        make_pair(source, replace(target, classes=("cat", "owl")))
    large = domain("mnist@16", [0, 1], ("cat", "dog"), size=16)
    with pytest.raises(anynorm.DataError, match=r"one size; got 8 × 8 pixels in a and 16 × 16 in mnist@16\. Write mnist@8\."):
        make_pair(source, large)
    pair = make_pair(source, target)
    with pytest.raises(anynorm.DataError, match=r"without labels.*; got a tuple of 2 items\. Labels .* belong to target_test"):
        replace(pair, target=target.train)
    with pytest.raises(anynorm.DataError, match=r"images of both domains must be of one size; got \(1, 8, 8\) and \(1, 16, 16\)"):
        replace(pair, target=large.train[0])


def test_faded_digits_have_half_of_the_contrast():
    pair = load_pair("digits", "digits-faded")
    digits = load_dataset("digits")
    assert torch.equal(pair.target, 60 + digits.train[0] // 2)
    assert torch.equal(pair.target_test[1], digits.test[1])
