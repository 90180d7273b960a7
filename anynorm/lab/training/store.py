"""A store of runs on disk: one folder per run, without an index. The status of a run follows from its files.

    runs/ID/config.json     the configuration, written when the run begins
    runs/ID/lock            held by the process that trains the run; the system releases it when the process ends or is killed
    runs/ID/checkpoint.pt   the state from which an interrupted run resumes
    runs/ID/record.json     the results, with a version and a checksum, written when the run ends
    runs/ID/NETWORK.pt      a trained network, by the name of its attribute: model.pt for classification
    runs/ID/task.pt         parameters and buffers of the task itself, if it has any
    runs/ID/artifacts/      files written by the task, such as pictures
    runs/ID/tensorboard/    event files, with --logger tensorboard

    done, failed            the status in the record
    running                 the lock is held, and no record exists
    stopped                 the lock is free, and no record exists
    unreadable              the record is damaged or has another version; other runs are not affected

Files are written atomically. Several processes may use a store at the same time, also on several machines if the disk supports
file locks.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, SoftFileLock, Timeout

from anynorm.errors import DataError, SpecError
from anynorm.io.atomic import atomic_write
from anynorm.lab.training.config import Config, config_from_dict
from anynorm.lab.training.record import DamagedRecordError, RunRecord, read_record, write_record

_ID = re.compile("[0-9a-f]{12}")
_PROBE_SECONDS = 0.2
"""Seconds that `begin` waits for a lock, because `runs` in another process acquires each lock for a moment."""


@dataclass(frozen=True)
class StoredRun:
    """A run of a store.

    Attributes:
        id: the id of the run.
        status: done, failed, running, stopped or unreadable.
        note: why the run failed or cannot be read; "" otherwise.
        config: fields of `Config` by name, as they are stored.
        updated: Unix time of the last update, in seconds.
        record: the record; None if the run has not ended, or its record cannot be read.
    """

    id: str
    status: str
    note: str
    config: dict[str, Any]
    updated: float
    record: RunRecord | None = None

    @property
    def metric(self) -> str:
        """Name and unit of the metric; "" without a record."""
        return "" if self.record is None else self.record.metric.label

    @property
    def value(self) -> float | None:
        """The last test value of the metric; None without a record, or if the run failed."""
        return None if self.record is None else self.record.value


class Store:
    """A folder of runs.

    Args:
        root: the folder; created if it does not exist.

    Raises:
        DataError: if the folder cannot be created.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self._locks: dict[str, FileLock] = {}
        try:
            (self.root / "runs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{self.root} cannot be used as a store: {error}. Use another folder (--runs).") from None

    def folder(self, run: str) -> Path:
        """Return the folder of a run, by its full id."""
        return self.root / "runs" / run

    def begin(self, config: Config) -> bool:
        """Lock a run until `release` or `finish` is called, or this object is deleted.

        Returns:
            Whether this object holds the lock; False if the run has ended or another process holds the lock.
        """
        run = config.id
        if run in self._locks:
            return True
        self.folder(run).mkdir(parents=True, exist_ok=True)
        lock = self._make_lock(run)
        if not _acquire(lock, _PROBE_SECONDS):
            return False
        try:
            if self._mark_running(config):
                self._locks[run] = lock
        finally:
            if run not in self._locks:
                lock.release()
        return run in self._locks

    def _mark_running(self, config: Config) -> bool:
        """Write the configuration of a run whose lock is held; return False, without writing, if the run has ended."""
        if self.is_valid(config.id):
            return False
        for temporary in self.folder(config.id).glob("*.part"):  # left by a process that was killed while writing
            temporary.unlink(missing_ok=True)
        path = self.folder(config.id) / "config.json"
        if path.exists():
            path.touch()
        else:
            with atomic_write(path) as temporary:
                temporary.write_text(json.dumps(asdict(config)))
        return True

    def release(self, config: Config) -> None:
        """Release the lock of a run. If the run has not ended, its status is "stopped", and it can be resumed."""
        self._release(config.id)

    def _release(self, run: str) -> None:
        lock = self._locks.pop(run, None)
        if lock is not None:
            lock.release()

    def finish(self, record: RunRecord) -> None:
        """Write the record of a run, delete its checkpoint and release its lock. Infinite and NaN values are stored as null."""
        write_record(record, self.folder(record.id) / "record.json")
        (self.folder(record.id) / "checkpoint.pt").unlink(missing_ok=True)
        self._release(record.id)

    def is_valid(self, run: str) -> bool:
        """Whether the run with this full id has a readable record."""
        return self.read(run) is not None

    def read(self, run: str) -> RunRecord | None:
        """Return the record of the run with this full id; None if the run has not ended or its record is damaged.

        Raises:
            DataError: if the record has another version.
        """
        try:
            return read_record(self.folder(run) / "record.json")
        except (OSError, DamagedRecordError):
            return None

    def runs(self) -> list[StoredRun]:
        """Return all runs, in the order of their last update."""
        runs = [run for folder in (self.root / "runs").iterdir() if (run := self._read_run(folder)) is not None]
        return sorted(runs, key=lambda run: run.updated)

    def _read_run(self, folder: Path) -> StoredRun | None:
        """Return the run of a folder; None if its process was killed before it wrote the configuration."""
        path, status, note = folder / "config.json", "stopped", ""
        try:
            record = read_record(folder / "record.json")
            updated = (folder / "record.json").stat().st_mtime
            return StoredRun(folder.name, record.status, record.note, dict(record.config), updated, record)
        except FileNotFoundError:
            pass
        except DataError as error:
            status, note = "unreadable", str(error)
        try:
            config, updated = json.loads(path.read_text()), path.stat().st_mtime
        except (OSError, ValueError):
            return None
        if self._is_held(folder.name):
            status, note = "running", ""
        return StoredRun(folder.name, status, note, config, updated)

    def record(self, run: str) -> RunRecord:
        """Return the record of a run.

        Args:
            run: the id of the run, or a prefix of it.

        Raises:
            DataError: if the run has not ended, or its record is damaged or has another version.
        """
        path = self.folder(self.find(run)) / "record.json"
        try:
            return read_record(path)
        except FileNotFoundError:
            raise DataError(f"run {run} has no record: it has not ended, or {path} was deleted.") from None

    def artifacts(self, run: str) -> list[str]:
        """Return the names of the files that the task of a run has written; `run` is the id, or a prefix of it."""
        folder = self.folder(self.find(run)) / "artifacts"
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())

    def find(self, run: str) -> str:
        """Return the full id of the run whose id starts with `run`.

        Raises:
            DataError: if the id of no run, or of several runs, starts with `run`.
        """
        if _ID.fullmatch(run) and self.folder(run).is_dir() and self._read_run(self.folder(run)) is not None:
            return run
        ids = [each.id for each in self.runs()]
        matches = [full for full in ids if full.startswith(run)]
        if len(matches) != 1:
            examples = f"{len(ids)} runs, such as {' '.join(ids[-3:])}" if ids else "no runs"
            raise DataError(
                f"{run!r} must be the beginning of one id; it matches {len(matches)} in {self.root}, which has {examples}."
            )
        return matches[0]

    def config(self, run: str) -> Config:
        """Return the configuration of a run; `run` is the id, or a prefix of it.

        Raises:
            DataError: if no run or several match, or the configuration is from an incompatible version of anynorm.
        """
        full = self.find(run)
        stored = self._read_run(self.folder(full))
        try:
            return config_from_dict({} if stored is None else stored.config)
        except SpecError as error:
            raise DataError(f"run {full} was configured by another version of anynorm: {error}") from None

    def remove(self, run: str) -> str:
        """Delete a run and return its full id; `run` is the id, or a prefix of it.

        Raises:
            DataError: if no run or several match, or a process is training the run.
        """
        full = self.find(run)
        if self._is_held(full):
            raise DataError(f"run {full} is running; stop it first.")
        shutil.rmtree(self.folder(full), ignore_errors=True)
        return full

    def _make_lock(self, run: str) -> FileLock:
        return FileLock(self.folder(run) / "lock", thread_local=False)

    def _is_held(self, run: str) -> bool:
        """Whether a process is training a run, that is, holds its lock."""
        if run in self._locks or not (self.folder(run) / "lock").exists():
            return run in self._locks
        lock = self._make_lock(run)
        held = not _acquire(lock, 0)
        lock.release()
        return held


def _acquire(lock: FileLock, seconds: float) -> bool:
    """Try to acquire a lock within some seconds and return whether it was acquired.

    Raises:
        DataError: if the disk does not support locks that are released when their process ends.
    """
    acquired, reason = False, ""
    try:
        lock.acquire(timeout=seconds, poll_interval=0.02)
        acquired = True
    except Timeout:
        pass
    except OSError as error:
        reason = str(error)
    if isinstance(lock, SoftFileLock):  # filelock's fallback: it is not released if the process is killed
        lock.release()
        reason = "flock is not implemented"
    if reason:
        raise DataError(f"{lock.lock_file} cannot be locked: {reason}. Keep runs on a disk that can lock files (--runs).")
    return acquired
