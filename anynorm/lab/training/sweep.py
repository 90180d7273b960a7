"""A sweep: a grid of cells, each measured by one job of an executor.

    cells ── measure ──▶ rows ──▶ table, claims, report

A cell is a dictionary of plain values, including the seed, that identifies one measurement. A row is a cell together with its
metrics. `anynorm compare` and `anynorm reproduce` both run a sweep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anynorm.lab.training.config import Config
from anynorm.lab.training.devices import Hardware
from anynorm.lab.training.executors import Executor
from anynorm.lab.training.run import run
from anynorm.lab.training.store import Store

Row = dict[str, Any]


def grid(seeds: int, **axes: Iterable[Any]) -> list[Row]:
    """Return one cell per combination of the values of `axes` and the seeds 0 to `seeds` − 1.

    >>> grid(1, norm=["bn", "gn:8"], size=[2])
    [{'norm': 'bn', 'size': 2, 'seed': 0}, {'norm': 'gn:8', 'size': 2, 'seed': 0}]
    """
    cells: list[Row] = [{}]
    for name, values in {**axes, "seed": range(seeds)}.items():
        choices = list(values)
        cells = [cell | {name: choice} for cell in cells for choice in choices]
    return cells


@dataclass(frozen=True)
class Sweep:
    """A list of cells and a function that measures one cell.

    Args:
        cells: the cells, in the order of the final table.
        measure: a picklable function that returns the metrics of a cell; it is called in worker processes.
    """

    cells: Sequence[Row]
    measure: Callable[[Row], Row]

    def missing(self, rows: Iterable[Row]) -> list[Row]:
        """Return the cells that have no row among `rows`."""
        measured = list(rows)
        return [cell for cell in self.cells if not any(cell.items() <= row.items() for row in measured)]

    def run(self, executor: Executor, rows: Iterable[Row] = ()) -> Iterator[Row]:
        """Measure the cells that have no row among `rows`, and yield each new row when its job ends."""
        for cell, metrics in executor.map_unordered(self.measure, self.missing(rows)):
            yield cell | metrics

    def in_order(self, rows: Iterable[Row]) -> list[Row]:
        """Sort rows in the order of the cells."""
        return sorted(rows, key=lambda row: next(k for k, cell in enumerate(self.cells) if cell.items() <= row.items()))


def get_or_train(config: Config, root: Path, hardware: Hardware | None = None) -> dict[str, Any]:
    """Return the record of a run; train the run first if the store does not have its record.

    If another process is training the run, wait for it, and continue the training if that process is killed.

    Args:
        config: the configuration of the run.
        root: the folder of the store.
        hardware: the hardware to train on; the CPU by default.
    """
    store = Store(root)
    while not store.is_valid(config.id):
        if not run(config, root, hardware=hardware) and not store.is_valid(config.id):
            time.sleep(1)
    return store.record(config.id)
