"""Locate and download the files of datasets.

Files are searched under $ANYNORM_DATA or, if that is not set, in the user's cache directory. Missing files are downloaded there
and checked against their md5. A file appears under its name only when it is complete: an interrupted download stays in NAME.part
and is continued by the next call, and archives are unpacked into a separate directory first. Processes that need the same file
wait for each other.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from anynorm.errors import DataError
from anynorm.progress import track_bytes


class RemoteFile(NamedTuple):
    """A file on the web: its URL, its md5, and its path under the data directory."""

    url: str
    md5: str
    path: str


def data_dir() -> Path:
    """Return the directory of all datasets: $ANYNORM_DATA, or else `anynorm` in the user's cache directory."""
    configured = os.environ.get("ANYNORM_DATA")
    return Path(configured) if configured else Path(_pooch().os_cache("anynorm"))


def find_path(path: str) -> Path:
    """Resolve a path relative to the working directory, or to the data directory if it exists only there."""
    return data_dir() / path if not Path(path).exists() and (data_dir() / path).exists() else Path(path)


def find_file(pattern: str) -> Path:
    """Return the first file under the data directory that matches a glob pattern.

    Raises:
        DataError: if no file matches. The message names the directory in which to put it.
    """
    matches = sorted(data_dir().glob(pattern))
    if not matches:
        raise DataError(
            f"{pattern} not found under {data_dir()}. Put it there, or set ANYNORM_DATA to the directory that has it."
        )
    return matches[0]


def fetch_file(pattern: str, remote: RemoteFile) -> Path:
    """Return a file under the data directory; download it (and unpack it) if it is missing.

    Args:
        pattern: Path of the file relative to the data directory.
        remote: The file to download: the file itself, or a .tar.gz archive that contains it.

    Raises:
        DataError: if the file cannot be downloaded, unpacked or found.
    """
    if not any(data_dir().glob(pattern)):
        archive = data_dir() / remote.path
        if not archive.exists():
            download(remote)
        if archive.name.endswith(".tar.gz"):
            with lock_directory(archive.parent):
                if not any(data_dir().glob(pattern)):
                    _unpack(archive)
    return find_file(pattern)


def download(remote: RemoteFile) -> Path:
    """Download a file into the data directory, continuing an interrupted download.

    Raises:
        DataError: if the download fails (the next call continues it), or the checksum is wrong (the download is deleted).
    """
    path = data_dir() / remote.path
    part = path.with_name(path.name + ".part")
    with lock_directory(path.parent):
        if path.exists():
            return path
        was_partial = part.exists()
        md5 = _complete(remote.url, part, path)
        if was_partial and md5 != remote.md5:  # the server ignored the range, or the partial file was damaged: start from zero
            part.unlink()
            md5 = _complete(remote.url, part, path)
        if md5 != remote.md5:
            part.unlink()
            raise DataError(
                f"the file at {remote.url} must have the checksum {remote.md5}; got {md5}. The download was deleted; run again."
            )
        return part.replace(path)


def _complete(url: str, part: Path, path: Path) -> str:
    """Download the missing part of a partial file, and return the md5 of the result."""
    try:
        _append_rest(url, part)
    except OSError as error:
        raise DataError(
            f"cannot download {url}: {error}. Run again to continue the download, put the file at {path}, "
            "or set ANYNORM_DATA to the directory that has it."
        ) from None
    return str(_pooch().file_hash(str(part), alg="md5"))


def _append_rest(url: str, part: Path) -> None:
    with part.open("ab") as file, track_bytes(f"downloading {part.stem}") as progress:
        headers = {"Range": f"bytes={file.tell()}-"} if file.tell() else {}
        downloader = _pooch().HTTPDownloader(progressbar=progress, chunk_size=1 << 18, headers=headers, timeout=30)
        try:
            downloader(url, file, pooch=None)
        except OSError as error:  # all errors of requests, on which pooch is built
            response = getattr(error, "response", None)
            if not headers or getattr(response, "status_code", None) != 416:  # 416: the rest is empty, the file is complete
                raise


def fetch_weights(url: str) -> Path:
    """Return a file of pretrained weights, in the folder `weights` of the data directory; download it if it is missing.

    Args:
        url: the file; its name ends in the first digits of its SHA-256, as torch.hub expects: vgg19-dcbb9e9d.pth.

    Raises:
        DataError: if the download fails or the checksum is wrong. The message names the path at which to put the file.
    """
    from torch.hub import download_url_to_file

    name = url.rpartition("/")[2]
    path, digits = data_dir() / "weights" / name, Path(name).stem.rpartition("-")[2]
    if path.exists():
        return path
    with lock_directory(path.parent):
        if not path.exists():  # another process may have downloaded it
            try:
                download_url_to_file(url, str(path), hash_prefix=digits, progress=False)
            except (OSError, RuntimeError) as error:
                raise DataError(f"cannot download {url}: {error}. Run again, or put the file at {path}.") from None
    return path


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Create a directory and wait for other processes that download or unpack into it."""
    from filelock import FileLock

    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(directory / ".lock")
        lock.acquire()
    except OSError as error:
        raise DataError(f"cannot write to {directory}: {error}. Set ANYNORM_DATA to a writable directory.") from None
    try:
        yield
    finally:
        lock.release()


def _unpack(archive: Path) -> None:
    """Unpack an archive into its directory; each file appears under its name when it is complete."""
    staging = archive.with_name(archive.name + ".unpacked")
    try:
        shutil.unpack_archive(archive, staging, filter="data")
        for path in [path for path in staging.rglob("*") if path.is_file()]:
            destination = archive.parent / path.relative_to(staging)
            destination.parent.mkdir(parents=True, exist_ok=True)
            path.replace(destination)
    except (tarfile.TarError, zlib.error, OSError, EOFError) as error:
        raise DataError(f"cannot unpack {archive}: {error}. Delete it and run again.") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _pooch() -> Any:
    """Import pooch at first use: it is part of the `lab` extra."""
    try:
        import pooch
    except ImportError:
        raise DataError(
            "downloads need pooch: pip install 'anynorm[lab]', or set ANYNORM_DATA to a directory of files."
        ) from None
    return pooch
