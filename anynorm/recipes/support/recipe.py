"""A recipe: a table or figure of a paper as cells to be measured, claims about them, and pictures.

Each cell is measured on its own, in one of several processes of one thread each, and written as it comes: a run that is stopped
goes on where it was.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from anynorm.errors import DataError
from anynorm.progress import track
from anynorm.recipes.support.claims import Claim
from anynorm.recipes.support.record import Record, Row, read_record
from anynorm.table import Table
from anynorm.training.executors import Executor, LocalExecutor
from anynorm.training.provenance import provenance

Settings = dict[str, Any]
SMOKE = "smoke"
"""The preset that runs in seconds, and bears out nothing."""


@dataclass(frozen=True)
class Recipe:
    """What is measured, under which settings, and what is claimed.

    Args:
        presets: settings by name; `seeds` is one of them.
        cells: what there is to measure under settings; a cell tells itself from the others by plain values.
        measure: gives the numbers of a cell.
        claims: that settings can bear out.
        draw: makes pictures of a record, at a path without ending.
        tables: what else is to be told of a record.
    """

    name: str
    presets: dict[str, Settings]
    cells: Callable[[Settings], list[Row]]
    measure: Callable[[Settings, Row], Row]
    claims: Callable[[Settings], list[Claim]]
    draw: Callable[[Record, Path], list[Path]]
    tables: Callable[[Record], list[Table]] = lambda _: []

    def run(self, preset: str, folder: Path, executor: Executor | None = None) -> Record:
        """Measure every cell that the record in a folder lacks.

        Args:
            executor: who does it; this process alone, where there is none.
        """
        executor = executor or LocalExecutor(1)
        if preset not in self.presets:
            raise DataError(f"{self.name} has no preset {preset!r}. It has: {' '.join(self.presets)}.")
        settings = self.presets[preset]
        path = folder / f"{self.name}.{preset}.json"
        record = read_record(path) if path.exists() else Record(self.name, preset, settings)
        if record.settings != settings:
            raise DataError(f"{path} was made under other settings than the recipe has now: delete it to begin anew.")
        cells = self.cells(settings)
        missing = [cell for cell in cells if not any(cell.items() <= row.items() for row in record.rows)]
        began, before = time.perf_counter(), record.minutes
        # of the code that is loaded, whatever changes meanwhile
        made = provenance() | {"processes": executor.workers, "threads": 1}
        commits = set(record.provenance.get("commit", "").split())
        for cell, found in track(executor.map_unordered(partial(self.measure, settings), missing), self.name, len(missing)):
            record.rows.append(cell | found)
            record.minutes = round(before + (time.perf_counter() - began) / 60, 2)
            if all("seconds" in row for row in record.rows):  # runs may have been there already
                record.minutes = round(sum(row["seconds"] for row in record.rows) / 60 / executor.workers, 2)
            commits.add(found.get("commit", made["commit"]))
            record.provenance = made | {"commit": " ".join(sorted(commits))}
            record.write(path)
        record.rows.sort(key=lambda row: next(place for place, cell in enumerate(cells) if cell.items() <= row.items()))
        record.write(path)
        return record

    def judge(self, record: Record) -> Table:
        """Say which claims the record bears out."""
        rows = [claim.judge(record.rows) for claim in self.claims(record.settings)]
        held = sum(row["verdict"] == "holds" for row in rows)
        told = f"{self.name}, preset {record.preset}: {held} of {len(rows)} claims hold ({record.minutes:.3g} minutes"
        told += f", commit {record.provenance.get('commit', 'unknown')})."
        smoke = "Smoke shows that the parts work together: its verdicts mean nothing." if record.preset == SMOKE else ""
        return Table(rows, " ".join(filter(None, (told, record.failures, smoke))))


def grid(seeds: int, **axes: Iterable[Any]) -> list[Row]:
    """List the cells of a grid, each with every seed.

    >>> grid(1, norm=["bn", "gn:8"], size=[2])
    [{'norm': 'bn', 'size': 2, 'seed': 0}, {'norm': 'gn:8', 'size': 2, 'seed': 0}]
    """
    cells: list[Row] = [{}]
    for name, values in {**axes, "seed": range(seeds)}.items():
        fixed = list(values)
        cells = [cell | {name: value} for cell in cells for value in fixed]
    return cells


def recipe_names() -> list[str]:
    """List the names of the recipes that the package has."""
    here = Path(__file__).parent.parent
    return sorted(path.stem for path in here.glob("*.py") if path.stem != "__init__")


def load_recipe(name: str) -> Recipe:
    """Load a recipe by its name."""
    names = recipe_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=2, cutoff=0.4) or names
        raise DataError(f"There is no recipe {name!r}." + (f" Near: {' '.join(near)}." if near else ""))
    recipe: Recipe = import_module(f"anynorm.recipes.{name}").RECIPE
    return recipe
