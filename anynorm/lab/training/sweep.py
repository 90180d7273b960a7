"""A sweep: a grid of cells, each measured by one job of an executor.

    cells ── measure ──▶ metrics;  rows = cells with their metrics ──▶ tables, claims

A cell is a dictionary of plain values, including the seed, that identifies one measurement. A row is a cell together with its
metrics. `anynorm reproduce` runs a sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from anynorm.lab.training.executors import Executor

Cell = dict[str, Any]
"""The values that identify a measurement, such as norm, batch size and seed, by name."""
Measurement = dict[str, Any]
"""The metrics of a cell by name."""
Row = dict[str, Any]
"""A cell together with its metrics."""


def grid(seeds: int, **axes: Iterable[Any]) -> list[Cell]:
    """Return one cell per combination of the values of `axes` and the seeds 0 to `seeds` − 1.

    >>> grid(1, norm=["bn", "gn:8"], size=[2])
    [{'norm': 'bn', 'size': 2, 'seed': 0}, {'norm': 'gn:8', 'size': 2, 'seed': 0}]
    """
    cells: list[Cell] = [{}]
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

    cells: Sequence[Cell]
    measure: Callable[[Cell], Measurement]

    def missing(self, rows: Iterable[Row]) -> list[Cell]:
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
