"""The record of a run: its configuration and results, and the JSON file that holds them, with a version and a checksum.

{"version": 2, "sha256": …, "record": {"config": {…}, "status": "done", "curve": […], "test_error": 2.5, …}}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from anynorm.errors import DataError
from anynorm.io.atomic import atomic_write
from anynorm.lab.training.task import Metric
from anynorm.table import json_safe

VERSION = 2
"""Version of the file format."""
DONE, FAILED = "done", "failed"
ERROR = Metric("error", "%")
"""The metric of a record that names none: old records of classification."""


class DamagedRecordError(DataError):
    """A record is incomplete or does not match its checksum."""


@dataclass(frozen=True)
class LayerShift:
    """The estimation shift of one norm of a trained network; see `anynorm.diagnostics.estimation_shift`.

    Attributes:
        position: position of the norm in the network, from 1.
        path: path of the norm in the network.
        norm: spec of the norm.
        esm_mean: estimation shift magnitude of the mean.
        esm_std: estimation shift magnitude of the standard deviation.
        shift: the larger of the two; None if it cannot be measured.
    """

    position: int
    path: str
    norm: str | None
    esm_mean: float | None
    esm_std: float | None
    shift: float | None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LayerShift:
        """Return a shift from its form in the file, which calls the position "place"."""
        return cls(values["place"], **{name: value for name, value in values.items() if name != "place"})

    def to_dict(self) -> dict[str, Any]:
        """Return the shift as in the file."""
        values = vars(self)
        return {"place": values["position"]} | {name: value for name, value in values.items() if name != "position"}


@dataclass(frozen=True)
class RunRecord:
    """The configuration and the results of a run that has ended.

    Attributes:
        id: the id of the run.
        config: fields of `anynorm.lab.training.config.Config` by name, as they are stored, because a record can be read even if
            its configuration is not valid here: its norm may be registered by a user's module. `Store.config` makes a `Config`.
        status: `DONE` or `FAILED`.
        note: why the run failed; "" if it did not.
        steps: number of training steps.
        curve: one entry per evaluation: step, epoch, and the metrics `train_…` and `test_…`.
        metric: the metric by which runs of this task are compared.
        metrics: the last value of each metric, `train_…` or `test_…`; test metrics of a failed run are None.
        parameters: number of parameters.
        saved_bytes: number of bytes that a forward pass saves for backward; None if it was not measured.
        shift: the estimation shift of each norm; None if it was not measured, or no norm has running statistics.
        importance: the learned mixing weights of each norm, see `anynorm.diagnostics.importance`; None if no norm has any.
        items: the values of test samples by the name of a metric without `test_`, see `Task.items` and
            `anynorm.lab.training.items.pack_items`. Empty if they are not known.
        seconds: wall-clock time of the run.
        provenance: commit, versions and hardware.
    """

    id: str
    config: Mapping[str, Any]
    status: str
    note: str = ""
    steps: int | None = None
    curve: Sequence[Mapping[str, Any]] = ()
    metric: Metric = ERROR
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    parameters: int | None = None
    saved_bytes: int | None = None
    shift: Sequence[LayerShift] | None = None
    importance: Sequence[Mapping[str, Any]] | None = None
    items: Mapping[str, str | list[float]] = field(default_factory=dict)
    seconds: float | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether the run was trained to its end, without failing."""
        return self.status == DONE

    @property
    def norm(self) -> str:
        """The spec or layout of the norms."""
        return str(self.config["norm"])

    @property
    def batch_size(self) -> int:
        """Number of samples per batch."""
        return int(self.config["batch_size"])

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.config["seed"])

    @property
    def value(self) -> float | None:
        """The last test value of the metric; None if the run failed."""
        return self.metrics.get(f"test_{self.metric.name}") if self.done else None

    @property
    def max_shift(self) -> float | None:
        """The largest estimation shift of a norm; None if there is none."""
        return max((layer.shift for layer in self.shift or () if layer.shift is not None), default=None)

    @classmethod
    def from_dict(cls, run: str, values: Mapping[str, Any]) -> RunRecord:
        """Make a record from its form in the file.

        Args:
            run: the id of the run.
            values: see `to_dict`.

        Raises:
            KeyError: if the configuration or the status is missing.
        """
        shift = values.get("shift")
        return cls(
            id=run,
            config=values["config"],
            status=values["status"],
            note=values.get("note", ""),
            steps=values.get("steps"),
            curve=values.get("curve", ()),
            metric=Metric(**values["metric"]) if "metric" in values else ERROR,
            metrics={name: value for name, value in values.items() if name.startswith(("train_", "test_"))},
            parameters=values.get("parameters"),
            saved_bytes=values.get("saved_bytes"),
            shift=None if shift is None else [LayerShift.from_dict(layer) for layer in shift],
            importance=values.get("importance"),
            items=values.get("items", {}),
            seconds=values.get("seconds"),
            provenance=values.get("provenance", {}),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the record as in the file: plain values, with the metrics among the other entries, and without the id."""
        return {
            "config": self.config,
            "status": self.status,
            "note": self.note,
            "steps": self.steps,
            "curve": self.curve,
            "metric": self.metric._asdict(),
            **self.metrics,
            "parameters": self.parameters,
            "saved_bytes": self.saved_bytes,
            "shift": None if self.shift is None else [layer.to_dict() for layer in self.shift],
            "importance": self.importance,
            "items": self.items,
            "seconds": self.seconds,
            "provenance": self.provenance,
        }


def write_record(record: RunRecord, path: Path) -> None:
    """Write a record atomically; infinite and NaN values become null."""
    values = json_safe(record.to_dict())
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps({"version": VERSION, "sha256": _checksum(values), "record": values}, allow_nan=False))


def read_record(path: Path) -> RunRecord:
    """Read a record; the name of its folder is the id of the run.

    The record is cached as long as the file does not change, because a store may have hundreds of runs.

    Raises:
        FileNotFoundError: if the file does not exist.
        DamagedRecordError: if the file is incomplete or does not match its checksum.
        DataError: if the record has another version.
    """
    stat = path.stat()
    return _read_record(path, stat.st_mtime_ns, stat.st_ino, stat.st_size)


@lru_cache(maxsize=1000)
def _read_record(path: Path, *_file_version: int) -> RunRecord:
    try:
        content = json.loads(path.read_text())
        version = content["version"]
        if version == VERSION:
            record = RunRecord.from_dict(path.parent.name, content["record"])
        damage = "" if version != VERSION or content["sha256"] == _checksum(content["record"]) else "its checksum does not match"
    except (ValueError, KeyError, TypeError) as error:
        damage = f"{type(error).__name__}: {error}"
    if damage:
        raise DamagedRecordError(f"{path} is damaged: {damage}. Repeat the command that trained the run to train it again.")
    if version != VERSION:
        raise DataError(f"{path} is of version {version}; this anynorm reads version {VERSION}. Use another folder (--runs).")
    return record


def _checksum(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
