"""The record of a run on disk: its configuration and results as JSON, with a version and a checksum."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from anynorm.errors import DataError
from anynorm.io.atomic import atomic_write
from anynorm.table import json_safe

VERSION = 2
"""Version of the file format. Version 1 (anynorm 0.1) had an SQLite index."""


class DamagedRecordError(DataError):
    """A record is incomplete or does not match its checksum."""


def write_record(record: dict[str, Any], path: Path) -> None:
    """Write a record atomically; infinite and NaN values become null."""
    content = {"version": VERSION, "sha256": _checksum(json_safe(record)), "record": json_safe(record)}
    with atomic_write(path) as part:
        part.write_text(json.dumps(content, allow_nan=False))


def read_record(path: Path) -> dict[str, Any]:
    """Read a record.

    Raises:
        DamagedRecordError: if the file is incomplete or does not match its checksum.
        DataError: if the record has another version.
    """
    try:
        content = json.loads(path.read_text())
        record: dict[str, Any] = content["record"]
        version = content.get("version", 1)
        damage = "" if version != VERSION or content["sha256"] == _checksum(record) else "its checksum does not match"
    except (ValueError, KeyError, TypeError) as error:
        damage = f"{type(error).__name__}: {error}"
    if damage:
        raise DamagedRecordError(f"{path} is damaged: {damage}. Repeat the command that trained the run to train it again.")
    if version != VERSION:
        raise DataError(f"{path} is of version {version}; this anynorm reads version {VERSION}. Use another folder (--runs).")
    return record


def _checksum(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


class Summary(NamedTuple):
    """The part of a record that lists of runs show.

    Attributes:
        status: "done" or "failed".
        metric: name and unit of the metric.
        value: value of the metric in the last evaluation; None if the run failed.
        note: why the run failed; "" if it did not.
        config: fields of `anynorm.lab.training.config.Config`.
    """

    status: str
    metric: str
    value: float | None
    note: str
    config: dict[str, Any]


def read_summary(path: Path) -> Summary:
    """Read the summary of a record; cached as long as the file does not change, because a store may have hundreds of runs."""
    stat = path.stat()
    return _read_summary(path, stat.st_mtime_ns, stat.st_ino, stat.st_size)


@lru_cache(maxsize=10_000)
def _read_summary(path: Path, *_file_version: int) -> Summary:
    record = read_record(path)
    metric = record.get("metric", {"name": "error", "unit": "%"})  # old records of classification have no metric
    label = f"{metric['name']} {metric['unit']}".rstrip()
    return Summary(record["status"], label, record.get(f"test_{metric['name']}"), record.get("note", ""), record["config"])
