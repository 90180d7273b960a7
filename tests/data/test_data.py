"""Readers of data sets' own files; files that are missing or broken are named."""

import gzip
import hashlib
import http.server
import io
import struct
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

import anynorm
from anynorm.data import download as files
from anynorm.data import load
from anynorm.data.download import Source, download
from anynorm.data.folder import decode
from anynorm.data.sets import cifar10, digits, mnist
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


# by name, from folders, over the net


def picture(path, colour):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), colour).save(path)


def test_folders_are_read_with_their_splits_or_shared_out(tmp_path):
    for name in ("cats", "dogs"):
        for k in range(8):
            picture(tmp_path / "whole" / name / f"{k}.png", (250, 0, 0) if name == "cats" else (0, 0, 250))
            picture(tmp_path / "split" / "train" / name / f"{k}.png", "red")
            picture(tmp_path / "split" / "val" / name / f"{k}.png", "blue")
    found = load(f"folder:{tmp_path / 'whole'}", side=6)
    assert found.shape == (3, 6, 6, 2)
    assert len(found.train[0]) + len(found.test[0]) == 16
    assert len(found.test[0]) == 4
    for image, label in zip(*found.train, strict=True):
        assert int(image[0, 0, 0]) == (250 if label == 0 else 0)
    split = load(f"folder:{tmp_path / 'split'}", side=6)
    assert len(split.train[0]) == len(split.test[0]) == 16


def test_folders_that_are_no_data_sets_are_told(tmp_path, monkeypatch, capsys):
    picture(tmp_path / "one" / "cats" / "1.png", "red")
    (tmp_path / "bare" / "a").mkdir(parents=True)
    (tmp_path / "bare" / "b").mkdir()
    for name, said in (("one", r"has 1 subfolder\(s\)"), ("bare", "holds no image"), ("none", "There is no folder")):
        with pytest.raises(anynorm.DataError, match=said):
            load(f"folder:{tmp_path / name}")
    for part in ("train/a", "train/b", "test/a", "test/c"):
        picture(tmp_path / "more" / part / "1.png", "red")
    with pytest.raises(anynorm.DataError, match=r"has classes that .* has not: c"):
        load(f"folder:{tmp_path / 'more'}")
    Image.fromarray(np.full((8, 8), 30000, np.uint16)).save(tmp_path / "deep.png")
    assert int(decode(tmp_path / "deep.png", 4)[0, 0, 0]) == 30000 // 257
    for name in ("cats", "dogs"):
        for k in range(4):
            picture(tmp_path / "broken" / name / f"{k}.png", "red")
    (tmp_path / "broken" / "dogs" / "bad.png").write_text("no image")
    with pytest.raises(anynorm.DataError, match=r"1 of 9 images cannot be read, such as .*bad\.png.*--skip-unreadable"):
        load(f"folder:{tmp_path / 'broken'}", side=6)
    monkeypatch.setenv("ANYNORM_SKIP_UNREADABLE", "1")
    found = load(f"folder:{tmp_path / 'broken'}", side=6)
    assert len(found.train[0]) + len(found.test[0]) == 8
    assert "bad.png" in capsys.readouterr().err


@pytest.mark.slow
def test_many_images_are_decoded_by_several_processes(tmp_path):
    for k in range(240):
        picture(tmp_path / ("a" if k % 2 else "b") / f"{k}.png", (k, k, k))
    found = load(f"folder:{tmp_path}", side=4)
    assert sorted(torch.cat([found.train[0], found.test[0]])[:, 0, 0, 0].tolist()) == list(range(240))


def own():
    return (np.zeros((6, 1, 4, 4), np.uint8), [0, 1, 2, 0, 1, 2]), (
        torch.ones(2, 1, 4, 4, dtype=torch.uint8),
        torch.tensor([0, 1]),
    )


def odd():
    return (np.zeros((6, 4, 4), np.uint8), [0] * 6), (np.zeros((6, 4, 4), np.uint8), [0] * 6)


def test_data_of_ones_own_and_names_that_are_not_there():
    assert load("tests.lab.test_data:own").shape == (1, 4, 4, 3)
    for name, said in (
        ("tests.lab.test_data:odd", r"gave images \(6, 4, 4\)"),
        ("builtins:int", "must give"),
        ("minst", "Near: mnist"),
    ):
        with pytest.raises(anynorm.DataError, match=said):
            load(name)


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves a file, in ranges where they are asked for; the first answer is cut off in the middle."""

    content = bytes(range(256)) * 4000
    cut = True
    ranges: ClassVar[list[str]] = []

    def do_GET(self):
        asked = self.headers.get("Range")
        start = int(asked.split("=")[1].rstrip("-")) if asked else 0
        type(self).ranges.append(asked)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        body = self.content[start:]
        self.wfile.write(body[: len(body) // 2] if type(self).cut else body)

    def log_message(self, *_):
        pass


def test_downloads_go_on_where_they_were_cut_off_and_are_checked(root):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/file.bin"
        right = Source(url, hashlib.md5(Handler.content).hexdigest(), "set/file.bin")
        with pytest.raises(anynorm.DataError):  # a checksum, or a connection, that is broken off
            download(right)
        assert not (root / "set" / "file.bin").exists()
        Handler.cut = False
        (root / "set" / "file.bin.part").write_bytes(Handler.content[:1000])
        assert download(right).read_bytes() == Handler.content
        assert Handler.ranges[-1] == "bytes=1000-"
        with pytest.raises(anynorm.DataError, match=r"checksum .* it was thrown away"):
            download(Source(url, "0" * 32, "set/other.bin"))
        asked, twice = len(Handler.ranges), Source(url, right.md5, "set/twice.bin")
        with ThreadPoolExecutor(2) as pool:
            assert {path.read_bytes() for path in pool.map(download, [twice, twice])} == {Handler.content}
        assert len(Handler.ranges) == asked + 1  # the other waited
        assert not list((root / "set").glob("other*"))
        server.shutdown()


def test_an_archive_is_unpacked_by_one_and_found_by_all(root, monkeypatch):
    unpack, unpacked = files._unpack, []

    def counted(archive):
        unpacked.append(archive)
        time.sleep(0.3)  # the other has seen by now that nothing is there
        unpack(archive)

    monkeypatch.setattr(files, "_unpack", counted)
    (root / "parts").mkdir()
    (root / "parts" / "old.bin").write_bytes(b"old")  # of a try that was killed
    with tarfile.open(root / "set.tar.gz", "w:gz") as tar:
        for name in ("one", "two"):
            told = tarfile.TarInfo(f"parts/{name}.bin")
            told.size = 5
            tar.addfile(told, io.BytesIO(name.encode() + b"!!"))
    source = Source("http://127.0.0.1:9/set.tar.gz", "0" * 32, "set.tar.gz")
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: files.fetched("parts/one.bin", source), range(2)))
    assert [path.read_bytes() for path in found] == [b"one!!"] * 2
    assert unpacked == [root / "set.tar.gz"]
    assert sorted(path.name for path in (root / "parts").iterdir()) == ["old.bin", "one.bin", "two.bin"]
    assert not list(root.glob("*.unpacked"))
