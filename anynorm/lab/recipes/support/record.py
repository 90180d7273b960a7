"""The record of a recipe: its measurements as a JSON file, with the settings and provenance needed to repeat them."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Generic

from anynorm.errors import AnynormError, DataError
from anynorm.io.atomic import atomic_write
from anynorm.lab.recipes.support.older_records import upgrade_settings
from anynorm.lab.recipes.support.settings import SettingsT
from anynorm.lab.recipes.support.settings_json import from_json, to_json
from anynorm.lab.training.sweep import Row

VERSION = 3
"""Version of the file format. Version 2 (anynorm 0.2) is read too: its settings had no types. Version 1 (anynorm 0.1) is not."""


@dataclass
class RecipeRecord(Generic[SettingsT]):
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
    settings: SettingsT
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
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        text = json.dumps({"version": VERSION, **values, "settings": to_json(self.settings), "rows": []}, indent=2)
        with atomic_write(path) as temporary:
            temporary.write_text(text.replace('"rows": []', f'"rows": [\n{rows}\n  ]') + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON of a record, with the settings of version 2 in the form of the present version.

    Raises:
        DataError: if the file does not exist, is not a record, or has another version.
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
    if version not in (2, VERSION):
        reason = "was written by anynorm 0.1, whose settings had other names" if version == 1 else f"has version {version!r}"
        raise DataError(
            f"{path} {reason}; this anynorm reads records of versions 2 and {VERSION}. "
            "Delete it to measure again, or read it with the anynorm that wrote it."
        )
    names = {each.name for each in fields(RecipeRecord)}
    if values.keys() != names:
        missing, unknown = sorted(names - values.keys()), sorted(values.keys() - names)
        raise DataError(f"{path} is not a record: keys missing: {missing}, unknown: {unknown}. Delete it to measure again.")
    if version == 2:
        values["settings"] = upgrade_settings(values["recipe"], values["settings"])
    return values


def read_record(path: Path, settings_type: type[SettingsT]) -> RecipeRecord[SettingsT]:
    """Read a record.

    Args:
        path: the path of the JSON file.
        settings_type: the class of the settings of the recipe.

    Raises:
        DataError: if the file does not exist, is not a record, or has another version or settings of another kind.
    """
    values = read_json(path)
    try:
        settings = from_json(settings_type, values["settings"])
    except AnynormError as error:
        raise DataError(f"{path} has settings that this anynorm does not read: {error} Delete it to measure again.") from error
    return RecipeRecord(**values | {"settings": settings})
