"""Where data sets lie, and how they come there.

Files are looked for under $ANYNORM_DATA, or in the cache directory of the user where that is not set. What is missing is
downloaded from its usual address, its checksum compared; a download that was cut off goes on where it was.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from anynorm.errors import DataError
from anynorm.progress import track

CHUNK = 1 << 18


class Source(NamedTuple):
    """A file on the net: its address, its md5, and where it goes under the data directory."""

    url: str
    md5: str
    path: str


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


def fetched(pattern: str, source: Source) -> Path:
    """Find a file, or download it (and unpack it, where the source is an archive)."""
    if not any(data_root().glob(pattern)):
        archive = data_root() / source.path
        if not archive.exists():
            download(source)
        if archive.name.endswith(".tar.gz"):
            with _alone(archive.parent):
                if not any(data_root().glob(pattern)):
                    _unpack(archive)
    return found(pattern)


def download(source: Source) -> Path:
    """Download a file, going on where an earlier try was cut off; nothing but the whole file gets its name."""
    path = data_root() / source.path
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path.parent):
            if path.exists():
                return path
            with part.open("ab") as file:
                for chunk in track(_chunks(source.url, file.tell()), f"downloading {path.name}"):
                    file.write(chunk)
            found = hashlib.md5(part.read_bytes(), usedforsecurity=False).hexdigest()
            if found == source.md5:
                return part.replace(path)
            part.unlink()
    except (urllib.error.URLError, OSError) as error:
        raise DataError(
            f"{source.url} cannot be downloaded: {error}. Put the file at {path}, or set ANYNORM_DATA to where it lies."
        ) from None
    raise DataError(f"{source.url} gave a file with the checksum {found} instead of {source.md5}: it was thrown away. Try again.")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait for other processes that download into a folder, or unpack there."""
    held = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _chunks(url: str, start: int) -> Iterator[bytes]:
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        answer: Any = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as error:
        if start and error.code == 416:  # nothing is left: the last try had it all
            return
        raise
    with answer:
        if start and answer.status != 206:  # a server that knows no ranges begins anew
            answer.read(start)
        while chunk := answer.read(CHUNK):
            yield chunk


def _unpack(archive: Path) -> None:
    """Unpack an archive; a file in it gets its name when it is whole."""
    aside = archive.with_name(archive.name + ".unpacked")
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(aside, filter="data")
        for path in [path for path in aside.rglob("*") if path.is_file()]:
            goal = archive.parent / path.relative_to(aside)
            goal.parent.mkdir(parents=True, exist_ok=True)
            path.replace(goal)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}. Delete it and try again.") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
