"""Runs on disk: one directory, an index in SQLite, and a folder for each run.

    index.sqlite            one row a run: configuration, status, error
    runs/ID/record.json     the whole outcome, with a checksum of itself
    runs/ID/lock            held by the process that works on a run
    runs/ID/model.pt        the network as it ended
    runs/ID/checkpoint.pt   where a run that was stopped goes on

Files are written whole or not at all. One that is damaged is named, and does not keep the others from being read. Several
processes may write at once, on several machines too, where their disk can lock files: so the index has SQLite's rollback journal
(its other one, WAL, needs the processes to share memory).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from anynorm.errors import DataError, DiskError
from anynorm.table import plain
from anynorm.training.config import Config, config_from_dict

VERSION = 1
_TABLE = """CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, config TEXT NOT NULL, status TEXT NOT NULL, error REAL, note TEXT NOT NULL DEFAULT '',
    updated REAL NOT NULL)"""
ENDED = ("done", "failed")


class Store:
    """A directory of runs."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self.locks: dict[str, Lock] = {}
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._mend_index()
            with self._index() as index:
                version = index.execute("PRAGMA user_version").fetchone()[0]
                if version not in (0, VERSION):
                    raise DataError(
                        f"{self.root} is a store of version {version}; this anynorm reads version {VERSION}. Use another folder."
                    )
                if index.execute("PRAGMA journal_mode").fetchone()[0] == "wal":  # of an older store
                    with suppress(sqlite3.OperationalError):  # others have it open; the next time, then
                        index.execute("PRAGMA journal_mode = DELETE")
                if not version:
                    index.execute(_TABLE)
                    index.execute(f"PRAGMA user_version = {VERSION}")
        except (sqlite3.Error, OSError) as error:
            raise DataError(f"{self.root} cannot be used as a store of runs: {error}.") from None

    def _mend_index(self) -> None:
        """Write an index that cannot be read anew, from the records beside it."""
        path = self.root / "index.sqlite"
        try:
            connection = sqlite3.connect(path, timeout=60)
            try:
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
                return
            finally:
                connection.close()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # locked, or no file at all
                return
        aside = path.with_suffix(".damaged")
        path.replace(aside)
        for name in ("index.sqlite-journal", "index.sqlite-wal", "index.sqlite-shm"):
            (self.root / name).unlink(missing_ok=True)
        with self._index() as index:
            index.execute(_TABLE)
            index.execute(f"PRAGMA user_version = {VERSION}")
            for folder in sorted((self.root / "runs").glob("*/")):
                try:
                    found = _whole_record(folder / "record.json")
                except (OSError, ValueError, KeyError):
                    continue
                values = (
                    folder.name,
                    json.dumps(found["config"]),
                    found["status"],
                    found.get("test_error"),
                    found.get("note", ""),
                )
                index.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?)", (*values, time.time()))
        sys.stderr.write(f"{path} was damaged; it was written anew from the records of runs, and is kept as {aside.name}.\n")

    @contextmanager
    def _index(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.root / "index.sqlite", timeout=60)
        try:
            with connection:
                yield connection
        except sqlite3.Error as error:
            raise DataError(f"{self.root / 'index.sqlite'} cannot be used: {error}.") from None
        finally:
            connection.close()

    def folder(self, run: str) -> Path:
        """Give the folder of a run."""
        return self.root / "runs" / run

    def begin(self, config: Config) -> bool:
        """Take a run on, unless it has ended or another process works on it; say whether it is ours."""
        self.folder(config.id).mkdir(parents=True, exist_ok=True)
        if config.id in self.locks:
            return True
        lock = Lock(self.folder(config.id) / "lock")
        try:
            if lock.take() and self._noted(config):
                self.locks[config.id] = lock
        finally:
            if config.id not in self.locks:
                lock.release()
        return config.id in self.locks

    def _noted(self, config: Config) -> bool:
        """Note that a run is begun, unless it has ended; say whether it was."""
        with self._index() as index:
            row = index.execute("SELECT status FROM runs WHERE id = ?", (config.id,)).fetchone()
            if row is not None and row[0] in ENDED and self.is_valid(config.id):
                return False
            values = (config.id, json.dumps(asdict(config)), time.time())
            index.execute("INSERT OR REPLACE INTO runs (id, config, status, updated) VALUES (?, ?, 'running', ?)", values)
        return True

    def is_valid(self, run: str) -> bool:
        """Whether the record of a run, by its whole id, can be read."""
        try:
            _whole_record(self.folder(run) / "record.json")
        except (OSError, ValueError, KeyError):
            return False
        return True

    def release(self, config: Config) -> None:
        """Let go of a run that was begun; one that has not ended is stopped, and can be gone on with."""
        lock = self.locks.pop(config.id, None)
        if lock is not None:
            lock.release()

    def _is_held(self, run: str) -> bool:
        """Whether a process works on a run."""
        path = self.folder(run) / "lock"
        if run in self.locks or not path.exists():
            return run in self.locks
        lock = Lock(path)
        try:
            return not lock.take()
        finally:
            lock.release()

    def finish(self, config: Config, outcome: dict[str, Any]) -> None:
        """Write the outcome of a run; its checkpoint is not needed any more."""
        body = json.dumps(plain({"config": asdict(config), **outcome}), allow_nan=False)
        digest = hashlib.sha256(body.encode()).hexdigest()
        path = self.folder(config.id) / "record.json"
        part = path.with_suffix(".part")
        try:
            part.write_text(f'{{"sha256": "{digest}", "record": {body}}}\n')
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise DiskError(f"{path} cannot be written: {error}. Make room and run it again.") from None
        values = (outcome["status"], outcome.get("test_error"), outcome.get("note", ""), time.time(), config.id)
        with self._index() as index:
            index.execute("UPDATE runs SET status = ?, error = ?, note = ?, updated = ? WHERE id = ?", values)
        (self.folder(config.id) / "checkpoint.pt").unlink(missing_ok=True)
        self.release(config)

    def rows(self) -> list[dict[str, Any]]:
        """List all runs, the newest last."""
        with self._index() as index:
            found = index.execute("SELECT id, config, status, error, note, updated FROM runs ORDER BY updated").fetchall()
        rows = []
        for run, config, status, error, note, updated in found:
            stopped = status == "running" and not self._is_held(run)
            values = {"id": run, "status": "stopped" if stopped else status, "error": error, "note": note, "updated": updated}
            rows.append(values | {"config": json.loads(config)})
        return rows

    def record(self, run: str) -> dict[str, Any]:
        """Read the outcome of a run, by its id or the beginning of it."""
        path = self.folder(self.find(run)) / "record.json"
        try:
            return _whole_record(path)
        except FileNotFoundError:
            raise DataError(f"The run {run} has no record: it has not ended, or {path} was deleted.") from None
        except (ValueError, KeyError) as error:
            raise DataError(f"{path} is damaged: {error}. A comparison that wants it runs it again.") from None

    def find(self, run: str) -> str:
        """Give the whole id of a run from its beginning."""
        ids = [str(row["id"]) for row in self.rows()]
        fitting = [known for known in ids if known.startswith(run)]
        if len(fitting) != 1:
            known = f"{len(ids)} runs, such as {' '.join(ids[-3:])}" if ids else "no runs"
            raise DataError(f"{run!r} names {len(fitting)} runs of {self.root}, which has {known}.")
        return fitting[0]

    def config(self, run: str) -> Config:
        """Give the configuration of a run."""
        whole = self.find(run)
        return config_from_dict(next(row["config"] for row in self.rows() if row["id"] == whole))

    def remove(self, run: str) -> str:
        """Forget a run that nobody works on."""
        whole = self.find(run)
        if any(row["id"] == whole and row["status"] == "running" for row in self.rows()):
            raise DataError(f"The run {whole} is being worked on: stop it first.")
        with self._index() as index:
            index.execute("DELETE FROM runs WHERE id = ?", (whole,))
        shutil.rmtree(self.folder(whole), ignore_errors=True)
        return whole


def _whole_record(path: Path) -> dict[str, Any]:
    """Read a record, and compare its checksum."""
    text = path.read_text()
    found = json.loads(text)
    body = text[text.index('"record": ') + len('"record": ') : text.rindex("}")]
    if hashlib.sha256(body.encode()).hexdigest() != found["sha256"]:
        raise ValueError("its checksum is wrong")
    outcome: dict[str, Any] = found["record"]
    return outcome


class Lock:
    """A file that one process holds; the system lets go of it when that process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = os.open(path, os.O_RDWR | os.O_CREAT)

    def take(self) -> bool:
        """Take the lock, unless somebody has it; say whether it is ours."""
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise DataError(f"{self.path} cannot be locked: {error}. Keep runs on a disk that can lock files.") from None
        return True

    def release(self) -> None:
        """Let go."""
        os.close(self.file)
