"""Terminal output of a comparison: a live table during training, and the final table.

If stderr is not a terminal, one line per finished run is printed instead of the live table.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from anynorm.cli.options import make_console
from anynorm.lab.comparison.results import Results
from anynorm.lab.comparison.table import MEMORY, ComparisonTable
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.result import Result
from anynorm.progress import reserve_display

if TYPE_CHECKING:
    from anynorm.lab.comparison.comparison import Comparison

WIDE = 100
"""Minimum width of a terminal, in columns, for the table to include the memory."""


def watch(comparison: Comparison, records: Sequence[RunRecord], new_records: Iterable[RunRecord]) -> list[RunRecord]:
    """Show the results of a comparison as its runs finish.

    Args:
        comparison: the comparison.
        records: the records of the runs that have finished before.
        new_records: an iterable that yields the record of each other run when the run ends.

    Returns:
        The new records.
    """
    missing = len(comparison.missing(records))
    if not sys.stderr.isatty():
        return list(_print_lines(new_records, missing))
    progress = Progress(
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("remaining"),
        TimeRemainingColumn(),
    )
    task = progress.add_task("training", total=missing)
    live = Live(Group(_metric_table(comparison, records), progress), console=Console(stderr=True), transient=True)
    new: list[RunRecord] = []
    with reserve_display(), live:
        for record in new_records:
            new.append(record)
            progress.advance(task)
            live.update(Group(_metric_table(comparison, [*records, *new]), progress), refresh=True)
    return new


def _print_lines(new_records: Iterable[RunRecord], missing: int) -> Iterator[RunRecord]:
    start = time.monotonic()
    for number, record in enumerate(new_records, 1):
        result = "failed" if record.value is None else record.metric.describe(record.value, "test ")
        cell = f"{record.norm}, batch size {record.batch_size}, seed {record.seed}"
        sys.stderr.write(f"[{number}/{missing}] {cell}: {result} ({time.monotonic() - start:.0f} s)\n")
        yield record


def _metric_table(comparison: Comparison, records: Sequence[RunRecord]) -> RichTable:
    """Return the table of the metric of all finished runs."""
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    for title in ("norm", *(f"test {comparison.metric.label}\nbatch {size}" for size in comparison.batch_sizes)):
        table.add_column(title)
    results = Results(records, comparison.norms, comparison.batch_sizes)
    for norm in comparison.norms:
        table.add_row(norm, *(_describe(results.result(norm, size), comparison) for size in comparison.batch_sizes))
    return table


def _describe(result: Result, comparison: Comparison) -> str:
    """Return a result as text, with the number of finished runs if some are missing."""
    finished = result.n + result.num_failed
    if not finished:
        return "…"
    progress = f"  ({finished}/{comparison.seeds})" if finished < comparison.seeds else ""
    return format(result, comparison.metric.result_format) + progress


def print_comparison(table: ComparisonTable) -> None:
    """Print the results of a comparison, then the meaning of the columns, then the recommendation."""
    console = make_console()
    metric = table.results.metric
    tested = {size: ranking for size, ranking in table.results.rankings.items() if ranking.is_tested}
    grid = RichTable(box=None, pad_edge=False, header_style="bold")
    grid.add_column("norm")
    columns = [
        column
        for quantity in dict.fromkeys(column.quantity for column in table.columns)
        if quantity != MEMORY or console.width >= WIDE
        for column in table.columns
        if column.quantity == quantity and any(row[column.name] is not None for row in table)
    ]
    for column in columns:
        title = f"test {column.quantity}" if column.quantity == metric.label else column.quantity.replace(" (", "\n(")
        grid.add_column(f"{title}\nbatch {column.batch_size}", no_wrap=True)
    for row in table:
        cells = []
        for column in columns:
            value, ranking = row[column.name], tested.get(column.batch_size)
            text = "" if value is None else format(value, table.formats.get(column.name, ".2f"))
            is_marked = column.quantity == metric.label and ranking is not None and row["norm"] in ranking.not_worse
            cells.append(f"{text} *" if is_marked else text)
        grid.add_row(row["norm"], *cells)
    with console.capture() as capture:
        console.print(grid, highlight=False)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())
    legend, _, recommendation = table.finding.rpartition("\n")
    best, other = ("highest", "lower") if metric.higher_is_better else ("lowest", "higher")
    star = f"Mean [95 % interval]. * {best} {metric.name}, or not {other} by more than chance and a margin. " if tested else ""
    sys.stdout.flush()
    text = f"{star}{legend}\n\n{recommendation}"
    console.print(text, highlight=False, markup=False, soft_wrap=not console.is_terminal)
