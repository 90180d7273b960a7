"""Controls: numbers that must be right before a comparison means something.

    Learned        every network that a claim compares has learned: its training metric is beyond a threshold, in every run
    Requirement    an effect that is known to be large is there, or an instrument is valid: a quantity is beyond a threshold

A claim whose control fails is "not a fair test".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from anynorm.errors import DataError
from anynorm.lab.recipes.support.quantities import Quantity
from anynorm.lab.training.sweep import Cell, Row


class ControlResult(NamedTuple):
    """The outcome of a control for one cell, or for all.

    Attributes:
        name: what is controlled, such as "training accuracy (%)".
        cell: the cell; None for a requirement.
        value: the smallest value over the runs of the cell, or the mean of the quantity; None if it was not recorded.
        at_least: the threshold.
    """

    name: str
    cell: Cell | None
    value: float | None
    at_least: float

    @property
    def passed(self) -> bool:
        """Whether the value was recorded and is at least the threshold."""
        return self.value is not None and self.value >= self.at_least

    @property
    def reason(self) -> str:
        """Why the control fails, such as "training accuracy (%) of bn, batch 2: 13.1, below 20"."""
        where = "" if self.cell is None else " of " + ", ".join(f"{key} {value}" for key, value in sorted(self.cell.items()))
        number = "not recorded" if self.value is None else f"{self.value:.4g}, below {self.at_least:.4g}"
        return f"{self.name}{where}: {number}"


@dataclass(frozen=True)
class Learned:
    """Each network that a claim compares must have learned.

    Args:
        at_least: threshold of the column, in every run.
        column: the column of the training metric.
        name: the metric with its unit.
        where: the cells to which the control applies: all that have these entries.
    """

    at_least: float
    column: str = "train_accuracy"
    name: str = "training accuracy (%)"
    where: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_threshold(self.name, self.at_least)

    def check(self, rows: Sequence[Row], cell: Cell) -> ControlResult | None:
        """Return the outcome for the runs of a cell that did not fail; None if the control does not apply to the cell."""
        matching = [row for row in rows if cell.items() <= row.items() and not row.get("failure")]
        if not matching or any(not self.where.items() <= row.items() for row in matching):
            return None
        values = [row.get(self.column) for row in matching]
        known = [value for value in values if value is not None and math.isfinite(value)]
        return ControlResult(self.name, cell, min(known) if len(known) == len(values) else None, self.at_least)


@dataclass(frozen=True)
class Requirement:
    """An effect or a property that must be there before claims that name it are tested.

    Args:
        name: a name that claims have in `requires`, such as "bn fails at batch 2 (points lost)".
        quantity: the quantity.
        at_least: threshold of its mean over seeds.
    """

    name: str
    quantity: Quantity
    at_least: float

    def __post_init__(self) -> None:
        _check_threshold(self.name, self.at_least)

    def check(self, rows: Sequence[Row]) -> ControlResult:
        """Return the outcome: the mean over seeds; not recorded if a run is missing or failed."""
        values = [self.quantity.at(rows, seed) for seed in sorted(self.quantity.seeds(rows) or ())]
        known = [value for value in values if value is not None]
        complete = bool(known) and len(known) == len(values)
        return ControlResult(self.name, None, sum(known) / len(known) if complete else None, self.at_least)


Control = Learned | Requirement


def _check_threshold(name: str, at_least: float) -> None:
    if not math.isfinite(at_least):
        raise DataError(f"the threshold of the control {name!r} must be a number; got {at_least}.")


def check_recorded(controls: Sequence[Control], row: Row) -> None:
    """Raise an error if a run that did not fail lacks the number of a control.

    Raises:
        DataError: naming the control and the column.
    """
    for control in (control for control in controls if isinstance(control, Learned)):
        applies = control.where.items() <= row.items() and not row.get("failure")
        value = row.get(control.column)
        if applies and not (isinstance(value, int | float) and math.isfinite(value)):
            raise DataError(
                f"the control {control.name!r} has no number: the measurement must return a finite {control.column!r}; "
                f"got {value} in a row with {', '.join(sorted(row))}."
            )
