"""Downloads are continued, checked, and made by one process at a time; archives are unpacked once."""

import hashlib
import http.server
import io
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import anynorm
from anynorm.lab.data import download as download_module
from anynorm.lab.data.download import RemoteFile, data_dir, download, fetch_file, find_file

CONTENT = bytes(range(256)) * 4000


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNORM_DATA", str(tmp_path))
    return tmp_path


@contextmanager
def serve(*, truncate=False, ranges=True):
    """Serve CONTENT; yield its description and the list of Range headers received."""
    received = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            header = self.headers.get("Range")
            received.append(header)
            start = int(header.split("=")[1].rstrip("-")) if header and ranges else 0
            if start >= len(CONTENT):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(CONTENT) - start))
            self.end_headers()
            body = CONTENT[start:]
            self.wfile.write(body[: len(body) // 2] if truncate else body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield RemoteFile(f"http://127.0.0.1:{server.server_port}/f.bin", hashlib.md5(CONTENT).hexdigest(), "set/f.bin"), received
        server.shutdown()


def test_a_truncated_download_is_continued_by_the_next_call(root):
    with serve(truncate=True) as (remote, _), pytest.raises(anynorm.DataError, match=r"cannot download .* Run again to continue"):
        download(remote)
    assert not (root / "set" / "f.bin").exists()
    num_received = (root / "set" / "f.bin.part").stat().st_size
    assert 0 < num_received < len(CONTENT)
    with serve() as (remote, received):
        assert download(remote).read_bytes() == CONTENT
    assert received == [f"bytes={num_received}-"]
    assert not list(root.glob("**/*.part"))


def test_a_complete_partial_file_is_accepted(root):
    (root / "set").mkdir()
    (root / "set" / "f.bin.part").write_bytes(CONTENT)
    with serve() as (remote, received):
        assert download(remote).read_bytes() == CONTENT
    assert received == [f"bytes={len(CONTENT)}-"]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_damaged_partial_file_or_a_server_without_ranges_starts_from_zero(root, ranges):
    (root / "set").mkdir()
    (root / "set" / "f.bin.part").write_bytes(CONTENT[:1000] if not ranges else b"x" * 1000)
    with serve(ranges=ranges) as (remote, received):
        assert download(remote).read_bytes() == CONTENT
    assert received == ["bytes=1000-", None]


def test_a_wrong_checksum_is_refused_and_the_file_deleted(root):
    with serve() as (remote, _):
        with pytest.raises(
            anynorm.DataError, match=rf"must have the checksum 0{{32}}; got {remote.md5}\. The download was deleted"
        ):
            download(remote._replace(md5="0" * 32))
    assert not list(root.glob("set/f*"))


def test_two_downloads_of_a_file_at_once_are_one(root):
    with serve() as (remote, received), ThreadPoolExecutor(2) as pool:
        assert {path.read_bytes() for path in pool.map(download, [remote, remote])} == {CONTENT}
    assert len(received) == 1


def test_files_are_searched_in_anynorm_data_or_the_cache_directory(root, monkeypatch):
    with pytest.raises(anynorm.DataError, match=rf"a/\*\.bin not found under {root}\. Put it there, or set ANYNORM_DATA"):
        find_file("a/*.bin")
    (root / "a").mkdir()
    (root / "a" / "1.bin").touch()
    assert find_file("a/*.bin") == root / "a" / "1.bin"
    monkeypatch.delenv("ANYNORM_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
    assert data_dir() == root / "cache" / "anynorm"


def write_archive(path):
    with tarfile.open(path, "w:gz") as tar:
        for name in ("one", "two"):
            entry = tarfile.TarInfo(f"parts/{name}.bin")
            entry.size = 5
            tar.addfile(entry, io.BytesIO(name.encode() + b"!!"))


def test_an_archive_is_unpacked_by_one_process_and_found_by_all(root, monkeypatch):
    unpack, archives = download_module._unpack, []

    def slow_unpack(archive):
        archives.append(archive)
        time.sleep(0.3)  # by now the other thread has seen that the file is missing
        unpack(archive)

    monkeypatch.setattr(download_module, "_unpack", slow_unpack)
    (root / "parts").mkdir()
    (root / "parts" / "old.bin").write_bytes(b"old")  # left by a process that was killed
    write_archive(root / "set.tar.gz")
    remote = RemoteFile("http://127.0.0.1:9/set.tar.gz", "0" * 32, "set.tar.gz")
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: fetch_file("parts/one.bin", remote), range(2)))
    assert [path.read_bytes() for path in paths] == [b"one!!"] * 2
    assert archives == [root / "set.tar.gz"]
    assert sorted(path.name for path in (root / "parts").iterdir()) == ["old.bin", "one.bin", "two.bin"]
    assert not list(root.glob("*.unpacked"))


def test_a_damaged_archive_is_named_and_leaves_nothing(root):
    write_archive(root / "set.tar.gz")
    (root / "set.tar.gz").write_bytes((root / "set.tar.gz").read_bytes()[:-30])
    remote = RemoteFile("http://127.0.0.1:9/set.tar.gz", "0" * 32, "set.tar.gz")
    with pytest.raises(anynorm.DataError, match=r"cannot unpack .*set\.tar\.gz: .*Delete it and run again"):
        fetch_file("parts/one.bin", remote)
    assert not (root / "parts").exists()
    assert not list(root.glob("*.unpacked"))
