"""Measure one cell of a record, unless another process measures it or has measured it, and append it to the file."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from anynorm.lab.recipes.support.controls import Learned, check_recorded
from anynorm.lab.recipes.support.record import MeasuredCell, RecipeRecord, cell_key, read_cells
from anynorm.lab.training.sweep import Cell, Measurement


@dataclass(frozen=True)
class Job:
    """What the cells of a record have in common.

    Attributes:
        measure: a function of a cell and of the folder of the run store that returns the metrics of the cell.
        runs: the folder of the run store.
        record: the record without cells; it is written if the file does not exist.
        path: the file of the record.
        source: the provenance of the code and of this machine.
        controls: controls whose numbers a measurement must have; without them it is refused.
    """

    measure: Callable[[Cell, Path], Measurement]
    runs: Path
    record: RecipeRecord[Any]
    path: Path
    source: dict[str, Any]
    controls: tuple[Learned, ...] = ()


def measure_cell(job: Job, cell: Cell) -> MeasuredCell | None:
    """Measure a cell, append it to the record, and return it.

    Returns:
        None if another process is measuring the cell, or has measured it since this one read the record.

    Raises:
        DataError: if the measurement lacks the number of a control. Its training run is in the run store.
    """
    key = cell_key(cell)
    path = job.path.with_name(f".{job.path.name}.{hashlib.sha256(key.encode()).hexdigest()[:12]}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path, timeout=0):
            try:
                return None if _is_measured(job, key) else _measure(job, cell)
            finally:  # a process that gets the lock of the deleted file finds the cell in the record
                path.unlink(missing_ok=True)
    except Timeout:
        return None


def _measure(job: Job, cell: Cell) -> MeasuredCell:
    start = time.perf_counter()
    values = job.measure(cell, job.runs)
    seconds = round(time.perf_counter() - start, 2)
    own = {name: values.pop(name) for name in ("commit", "seconds") if name in values}
    measured = MeasuredCell(cell, values, job.source | {"seconds": seconds} | own)
    check_recorded(job.controls, measured.row)
    job.record.append(job.path, measured)
    return measured


def _is_measured(job: Job, key: str) -> bool:
    """Whether the record has the cell by now, measured by the same code on the same kind of processor."""
    if not job.path.exists():
        return False
    origin = (job.source["code"], job.source["cpu"])
    return any(each.origin == origin and cell_key(each.cell) == key for each in read_cells(job.path))
