"""The record of a recipe: its measurements as a JSON file, with the settings and provenance needed to repeat them."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from anynorm.errors import DataError
from anynorm.io.atomic import atomic_write
from anynorm.lab.training.sweep import Row

VERSION = 2
"""Version of the file format. Version 1 (anynorm 0.1) had no key `version` and different names of settings."""


@dataclass
class Record:
    """The measurements of one recipe with one preset.

    Attributes:
        recipe: name of the recipe.
        preset: name of the preset.
        settings: the settings of the preset.
        rows: one row per cell: the cell and its metrics.
        minutes: wall-clock time of the measurements.
        provenance: commit, versions, hardware and number of processes.
    """

    recipe: str
    preset: str
    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    minutes: float = 0.0
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def failure_summary(self) -> str:
        """The number of failed runs and the reason, one sentence per reason; "" if no run failed."""
        failures = [row["failure"] for row in self.rows if row.get("failure")]
        reasons = Counter(re.split(r"\. | in step | after step | at step ", failure)[0] for failure in failures)
        return " ".join(f"{count} of {len(self.rows)} runs failed: {reason.rstrip('.')}." for reason, count in reasons.items())

    def write(self, path: Path) -> None:
        """Write the record as JSON, one line per row; if writing fails, the previous file is left intact."""
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = ",\n".join("    " + json.dumps(row) for row in self.rows)
        text = json.dumps({"version": VERSION, **asdict(self), "rows": []}, indent=2)
        with atomic_write(path) as part:
            part.write_text(text.replace('"rows": []', f'"rows": [\n{rows}\n  ]') + "\n")


def read_record(path: Path) -> Record:
    """Read a record.

    Raises:
        DataError: if the file does not exist, is not a record, or has a version other than `VERSION`.
    """
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise DataError(f"record not found: {path}. `anynorm reproduce` writes records.") from None
    except ValueError as error:
        raise DataError(f"{path} is not a record: {error}. Delete it to measure again.") from None
    if not isinstance(values, dict) or "recipe" not in values:
        raise DataError(f"{path} is not a record: it must be a JSON object with the key 'recipe'. Delete it to measure again.")
    version = values.pop("version", 1)
    if version != VERSION:
        reason = "was written by anynorm 0.1, whose settings had other names" if version == 1 else f"has version {version!r}"
        raise DataError(
            f"{path} {reason}; this anynorm reads records of version {VERSION}. "
            "Delete it to measure again, or read it with the anynorm that wrote it."
        )
    names = {entry.name for entry in fields(Record)}
    if values.keys() != names:
        missing, unknown = sorted(names - values.keys()), sorted(values.keys() - names)
        raise DataError(f"{path} is not a record: keys missing: {missing}, unknown: {unknown}. Delete it to measure again.")
    return Record(**values)
