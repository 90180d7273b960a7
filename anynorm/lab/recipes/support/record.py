"""The record of a recipe: its measured cells as lines of a JSON Lines file.

    {"version": 4, "recipe": "hn_sn", "preset": "night", "settings": {…}, "design": "0c1d…", "versions": {…}}
    {"cell": {"norm": "bn", "seed": 0}, "values": {"accuracy": 71.2, …}, "provenance": {"commit": …, "code": …, "cpu": …}}

Cells are appended in any order, over days, by several processes. If the last line was cut off because the machine stopped, it is
left out: that cell is measured again. If a cell has several lines, the last one counts.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic

from filelock import FileLock

from anynorm.errors import AnynormError, DataError
from anynorm.io.atomic import atomic_write
from anynorm.lab.recipes.support.settings import SettingsT
from anynorm.lab.recipes.support.settings_json import from_json, to_json
from anynorm.lab.training.sweep import Cell, Measurement, Row

VERSION = 4
"""Version of the file format. Versions 1 to 3 were one JSON object per file, of anynorm 0.1 to 0.3."""
SUFFIX = ".jsonl"
HEADER = ("recipe", "preset", "settings", "design", "versions")
LINE_KEYS, ORIGIN = {"cell", "values", "provenance"}, {"code", "cpu"}


@dataclass(frozen=True)
class MeasuredCell:
    """One measured cell.

    Attributes:
        cell: what identifies the measurement, with the seed.
        values: the metrics by name.
        provenance: commit, code version (`code`), kind of processor (`cpu`), versions, seconds.
    """

    cell: Cell
    values: Measurement
    provenance: dict[str, Any]

    @property
    def origin(self) -> tuple[str, str]:
        """Code version and kind of processor. Two sides of a comparison must have the same."""
        return self.provenance["code"], self.provenance["cpu"]

    @property
    def row(self) -> Row:
        """The cell with its metrics and its origin."""
        code, cpu = self.origin
        return {**self.cell, **self.values, "code": code, "cpu": cpu}


@dataclass
class RecipeRecord(Generic[SettingsT]):
    """The measurements of one recipe with one preset.

    Attributes:
        recipe: name of the recipe.
        preset: name of the preset.
        settings: the settings of the preset.
        design: hash of settings, claims, δ and controls with which the measurement was begun.
        versions: versions of the recipe's measurement and of its tasks.
        cells: the measured cells, in the order of the file.
    """

    recipe: str
    preset: str
    settings: SettingsT
    design: str = ""
    versions: dict[str, int] = field(default_factory=dict)
    cells: list[MeasuredCell] = field(default_factory=list)

    @property
    def rows(self) -> list[Row]:
        """One row per cell: the cell, its metrics, code version and kind of processor."""
        return [cell.row for cell in self.latest.values()]

    @property
    def latest(self) -> dict[str, MeasuredCell]:
        """The last measurement of each cell, by `cell_key`, in the order in which cells were first measured."""
        return {cell_key(cell.cell): cell for cell in self.cells}

    @property
    def minutes(self) -> float:
        """Minutes of one core."""
        return sum(float(cell.provenance.get("seconds", 0.0)) for cell in self.latest.values()) / 60

    @property
    def failure_summary(self) -> str:
        """The number of failed runs and the reason, one sentence per reason; "" if no run failed."""
        rows = self.rows
        failures = [row["failure"] for row in rows if row.get("failure")]
        reasons = Counter(re.split(r"\. | in step | after step | at step ", failure)[0] for failure in failures)
        return " ".join(f"{count} of {len(rows)} runs failed: {reason.rstrip('.')}." for reason, count in reasons.items())

    def values_of_provenance(self, name: str) -> list[str]:
        """Return the different values of an entry of the provenance of all cells, sorted."""
        return sorted({str(cell.provenance[name]) for cell in self.latest.values() if name in cell.provenance})

    def write(self, path: Path) -> None:
        """Write the whole record; if writing fails, the previous file is left intact."""
        path.parent.mkdir(parents=True, exist_ok=True)
        header = {name: getattr(self, name) for name in HEADER} | {"settings": to_json(self.settings)}
        lines = [json.dumps({"version": VERSION, **header}), *(json.dumps(asdict(cell)) for cell in self.cells)]
        with atomic_write(path) as temporary:
            temporary.write_text("\n".join(lines) + "\n")

    def append(self, path: Path, cell: MeasuredCell) -> None:
        """Append a measured cell to the record and to its file, which other processes may append to at the same time."""
        line = json.dumps(asdict(cell)) + "\n"
        with FileLock(path.with_name(f".{path.name}.lock")):
            if not path.exists():
                self.write(path)
            _cut_unfinished_line(path)
            with path.open("a") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        self.cells.append(cell)


def cell_key(cell: Cell) -> str:
    """Return a text that identifies a cell."""
    return json.dumps(cell, sort_keys=True)


def read_header(path: Path) -> dict[str, Any]:
    """Read the first line of a record.

    Raises:
        DataError: if the file does not exist, is not a record, or has another version.
    """
    try:
        with path.open() as file:
            header = json.loads(file.readline())
    except FileNotFoundError:
        raise DataError(f"record not found: {path}. `anynorm reproduce` writes records.") from None
    except ValueError as error:
        raise DataError(f"{path} is not a record: {error}. Move it away to measure again.") from None
    if not isinstance(header, dict) or "recipe" not in header:
        raise DataError(f"{path} is not a record: its first line must be an object with the key 'recipe'. Move it away.")
    version = header.pop("version", None)
    if version != VERSION:
        raise DataError(
            f"{path} has version {version!r}; this anynorm reads records of version {VERSION}. "
            "Move it away to measure again, or read it with the anynorm that wrote it."
        )
    if header.keys() != set(HEADER):
        missing, unknown = sorted(set(HEADER) - header.keys()), sorted(header.keys() - set(HEADER))
        raise DataError(f"{path} is not a record: keys missing: {missing}, unknown: {unknown}. Move it away to measure again.")
    return header


def read_cells(path: Path) -> list[MeasuredCell]:
    """Read the cells of a record; an unfinished last line is left out.

    Raises:
        DataError: if another line is not a cell.
    """
    lines = path.read_text().split("\n")
    unfinished = lines.pop()  # "" if the file ends with a newline
    cells = []
    for number, line in enumerate(lines[1:], 2):
        try:
            values = json.loads(line)
        except ValueError as error:
            raise DataError(f"line {number} of {path} is not a cell: {error}. Restore the file, or delete the line.") from None
        if not isinstance(values, dict) or values.keys() != LINE_KEYS:
            raise DataError(f"line {number} of {path} must have the keys {', '.join(sorted(LINE_KEYS))}. Restore the file.")
        if not all(isinstance(value, dict) for value in values.values()):
            raise DataError(f"line {number} of {path}: {', '.join(sorted(LINE_KEYS))} must be objects. Restore the file.")
        if "seed" not in values["cell"] or not values["provenance"].keys() >= ORIGIN:
            raise DataError(
                f"line {number} of {path} must have a seed in its cell, and {' and '.join(sorted(ORIGIN))} in its provenance. "
                "Restore the file, or delete the line."
            )
        cells.append(MeasuredCell(**values))
    if unfinished:
        cells += _complete_cell(unfinished)
    return cells


def read_record(path: Path, settings_type: type[SettingsT]) -> RecipeRecord[SettingsT]:
    """Read a record.

    Args:
        path: the path of the file.
        settings_type: the class of the settings of the recipe.

    Raises:
        DataError: if the file does not exist, is not a record, or has another version or settings of another kind.
    """
    header = read_header(path)
    try:
        settings = from_json(settings_type, header["settings"])
    except AnynormError as error:
        raise DataError(f"{path} has settings that this anynorm does not read: {error} Move it away to measure again.") from error
    return RecipeRecord(**header | {"settings": settings}, cells=read_cells(path))


def _complete_cell(line: str) -> list[MeasuredCell]:
    """Return the cell of a last line without a newline, if the line is complete."""
    try:
        cell = MeasuredCell(**json.loads(line))
        return [cell] if cell.provenance.keys() >= ORIGIN else []
    except (ValueError, TypeError):
        return []


def _cut_unfinished_line(path: Path) -> None:
    """Remove a last line that was cut off, or end it if it is complete."""
    data = path.read_bytes()
    start = data.rfind(b"\n") + 1
    if start == len(data):
        return
    complete = bool(_complete_cell(data[start:].decode(errors="replace")))
    with path.open("r+b") as file:
        if complete:
            file.seek(0, 2)
            file.write(b"\n")
        else:
            file.truncate(start)
