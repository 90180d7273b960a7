"""A recipe reproduces one table or figure of a paper: settings, cells to measure, claims and plots."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic

from anynorm.errors import DataError
from anynorm.lab.recipes.support.claims import HOLDS, Claim
from anynorm.lab.recipes.support.record import RecipeRecord, read_record
from anynorm.lab.recipes.support.settings import SettingsT
from anynorm.lab.recipes.support.settings_json import to_json
from anynorm.lab.training.executors import Executor, LocalExecutor
from anynorm.lab.training.provenance import provenance
from anynorm.lab.training.sweep import Cell, Measurement, Sweep
from anynorm.progress import track
from anynorm.table import Table

SMOKE = "smoke"
"""The preset that takes seconds and only checks that the code works."""
RUNS = Path("runs/recipes")
"""Default folder of the run store."""


@dataclass(frozen=True)
class Recipe(Generic[SettingsT]):
    """A recipe: the measurements of one table or figure, and the claims of the paper about them.

    Args:
        name: the name of the recipe's module.
        presets: settings by preset, all of one class.
        cells: a function that returns the cells to measure with given settings, see `anynorm.lab.training.sweep`.
        measure: a function `measure(settings, cell, runs)` that returns the metrics of a cell; `runs` is the folder of the run
            store. It is called in worker processes, so it must be picklable.
        claims: a function that returns the claims that can be tested with given settings.
        plot: a function `plot(record, path)` that writes plots to `path` plus an extension and returns their paths.
        tables: a function that returns the tables of a record.
    """

    name: str
    presets: Mapping[str, SettingsT]
    cells: Callable[[SettingsT], list[Cell]]
    measure: Callable[[SettingsT, Cell, Path], Measurement]
    claims: Callable[[SettingsT], list[Claim]]
    plot: Callable[[RecipeRecord[SettingsT], Path], list[Path]]
    tables: Callable[[RecipeRecord[SettingsT]], list[Table]] = lambda _: []

    def settings(self, preset: str) -> SettingsT:
        """Return the settings of a preset.

        Raises:
            DataError: if the preset does not exist.
        """
        if preset not in self.presets:
            raise DataError(f"recipe {self.name!r} has no preset {preset!r}. Usable: {' '.join(self.presets)}.")
        return self.presets[preset]

    def read(self, path: Path) -> RecipeRecord[SettingsT]:
        """Read a record of this recipe, see `read_record`."""
        return read_record(path, type(next(iter(self.presets.values()))))

    def run(self, preset: str, folder: Path, executor: Executor | None = None, runs: Path = RUNS) -> RecipeRecord[SettingsT]:
        """Measure all cells that are not in the record in `folder`.

        The record is written after every cell, so that an interrupted call can be resumed.

        Args:
            preset: the name of a preset.
            folder: the folder of the record `NAME.PRESET.json`.
            executor: the executor that measures the cells; by default, they are measured in this process.
            runs: the folder of the run store, in which recipes share training runs.

        Returns:
            The complete record, with rows in the order of the cells.

        Raises:
            DataError: if the preset does not exist, or the settings of the record differ from those of the preset.
        """
        executor = executor or LocalExecutor(1)
        path = folder / f"{self.name}.{preset}.json"
        record = self._open_record(path, preset)
        sweep = Sweep(self.cells(record.settings), partial(_measure, self.measure, record.settings, runs))
        start, minutes_before = time.perf_counter(), record.minutes
        # the provenance of the code that is loaded now: files may change during the run
        source = provenance() | {"processes": executor.workers, "threads": 1}
        commits = set(record.provenance.get("commit", "").split())
        num_missing = len(sweep.missing(record.rows))
        for row in track(sweep.run(executor, tuple(record.rows)), self.name, num_missing):
            record.rows.append(row)
            record.minutes = round(minutes_before + (time.perf_counter() - start) / 60, 2)
            if all("seconds" in entry for entry in record.rows):  # runs read from the store count with their training time
                record.minutes = round(sum(entry["seconds"] for entry in record.rows) / 60 / executor.workers, 2)
            commits.add(row.get("commit", source["commit"]))
            record.provenance = source | {"commit": " ".join(sorted(commits))}
            record.write(path)
        record.rows = sweep.in_order(record.rows)
        record.write(path)
        return record

    def judge(self, record: RecipeRecord[SettingsT]) -> Table:
        """Test the claims of the paper with a record and return a table with one row per claim (see `Claim.judge`)."""
        rows = [claim.judge(record.rows) for claim in self.claims(record.settings)]
        num_holding = sum(row["verdict"] == HOLDS for row in rows)
        commit = record.provenance.get("commit", "unknown")
        summary = f"{self.name}, preset {record.preset}: {num_holding} of {len(rows)} claims hold"
        summary += f" ({record.minutes:.3g} minutes, commit {commit})."
        smoke = "The smoke preset only checks that the code works: its verdicts mean nothing." if record.preset == SMOKE else ""
        return Table(rows, " ".join(filter(None, (summary, record.failure_summary, smoke))))

    def _open_record(self, path: Path, preset: str) -> RecipeRecord[SettingsT]:
        """Return the record at a path, or a new record if the file does not exist.

        Raises:
            DataError: if the preset does not exist, or the settings of the record differ from those of the preset.
        """
        settings = self.settings(preset)
        record = self.read(path) if path.exists() else RecipeRecord(self.name, preset, settings)
        if differing := list(_differing_names(to_json(record.settings), to_json(settings))):
            raise DataError(
                f"{path} was measured with other settings than preset {preset!r} has now ({', '.join(differing)}). "
                "Delete it to measure again, or choose another folder for records."
            )
        return record


def _measure(measure: Callable[[SettingsT, Cell, Path], Measurement], settings: SettingsT, runs: Path, cell: Cell) -> Measurement:
    """Call `measure`; unlike a lambda, a `partial` of this function can be pickled."""
    return measure(settings, cell, runs)


def _differing_names(values: dict[str, Any], others: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the entries in which nested dictionaries differ, such as "training.config.lr"."""
    for name in sorted(values.keys() | others.keys()):
        value, other = values.get(name), others.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            yield from (f"{name}.{inner}" for inner in _differing_names(value, other))
        elif value != other:
            yield name
