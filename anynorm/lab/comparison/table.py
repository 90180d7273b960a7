"""The table of a comparison: one row per norm, with the metric and the costs at each batch size, and the recommendation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anynorm.lab.comparison.results import Results
from anynorm.lab.comparison.robustness import ROBUST_FORMAT, robust_results
from anynorm.lab.training.result import Result
from anynorm.table import Table

MEMORY = "memory"


@dataclass(frozen=True)
class Column:
    """A column of a comparison.

    Attributes:
        quantity: what is measured, with its unit: "error %", "shift".
        batch_size: number of samples per batch.
    """

    quantity: str
    batch_size: int

    @property
    def name(self) -> str:
        """The key of the column in the rows of the table."""
        return f"{self.quantity}, batch {self.batch_size}"


@dataclass
class ComparisonTable(Table):
    """The table of a comparison.

    Attributes:
        rows: one dictionary per norm; the value of a column such as "error %, batch 8" is a
            `anynorm.lab.training.result.Result`, or a number for costs.
        finding: the meaning of the columns and, in the last line, the recommendation.
        columns: the columns, except the norm.
        results: the runs and the ranking of the norms.
    """

    columns: list[Column]
    results: Results = field(repr=False)


def make_table(results: Results, step_seconds: Mapping[tuple[str, int], float]) -> ComparisonTable:
    """Return the table of a comparison.

    Args:
        results: the runs of the comparison.
        step_seconds: seconds per training step by norm and batch size.
    """
    values = {norm: _row(results, step_seconds, norm) for norm in results.norms}
    rows = [{"norm": norm, **{column.name: value for column, value in row.items()}} for norm, row in values.items()]
    columns = list(values[results.norms[0]])
    formats = {column.name: ROBUST_FORMAT for column in columns if isinstance(rows[0][column.name], Result)}
    formats |= {column.name: results.metric.result_format for column in columns if column.quantity == results.metric.label}
    finding = f"{_legend(results, step_seconds)}\n{results.recommendation}".lstrip()
    return ComparisonTable(rows, finding, columns, results, formats=formats)


def _row(results: Results, step_seconds: Mapping[tuple[str, int], float], norm: str) -> dict[Column, Result | float | None]:
    """Return the values of a norm."""
    row: dict[Column, Result | float | None] = {}
    for size in results.batch_sizes:
        reference = results.reference_norm
        values: dict[str, Result | float | None] = {
            results.metric.label: results.result(norm, size),
            **robust_results(results.cell(norm, size), results.attacks),
            "shift": results.mean(norm, size, lambda record: record.max_shift),
            "step time": _ratio(step_seconds.get((norm, size)), step_seconds.get((reference, size))),
            MEMORY: _ratio(*(results.mean(each, size, lambda record: record.saved_bytes) for each in (norm, reference))),
        }
        row |= {Column(quantity, size): value for quantity, value in values.items()}
    return row


def _legend(results: Results, step_seconds: Mapping[tuple[str, int], float]) -> str:
    """Return the meaning of the columns; "" if every run has failed."""
    robust = "Robust error: on adversarial images, by the mode of the norms during the attack. " * bool(results.attacks)
    shift = "Shift: largest estimation shift of a layer. " * any(record.max_shift is not None for record in results.records)
    memory = " and memory saved for backward" * any(record.saved_bytes is not None for record in results.records)
    return robust + shift + f"Step time{memory}: relative to {results.reference_norm}." * bool(step_seconds or memory)


def _ratio(value: float | None, reference: float | None) -> float | None:
    return value / reference if value and reference else None
