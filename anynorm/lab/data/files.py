"""Where data sets lie, and how they come there.

Files are looked for under $ANYNORM_DATA, or in the cache directory of the user where that is not set. What is missing is
downloaded from its usual address, its checksum compared; a download that was cut off goes on where it was.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from anynorm.errors import DataError
from anynorm.progress import shown

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
            _unpack(archive)
    return found(pattern)


def download(source: Source) -> Path:
    """Download a file, going on where an earlier try was cut off; nothing but the whole file gets its name."""
    path = data_root() / source.path
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with part.open("ab") as file:
            for chunk in shown(_chunks(source.url, file.tell()), f"downloading {path.name}"):
                file.write(chunk)
    except (urllib.error.URLError, OSError) as error:
        raise DataError(
            f"{source.url} cannot be downloaded: {error}. Put the file at {path}, or set ANYNORM_DATA to where it lies."
        ) from None
    found = hashlib.md5(part.read_bytes(), usedforsecurity=False).hexdigest()
    if found != source.md5:
        part.unlink()
        raise DataError(
            f"{source.url} gave a file with the checksum {found} instead of {source.md5}: it was thrown away. Try again."
        )
    part.replace(path)
    return path


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
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(archive.parent, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}. Delete it and try again.") from None
