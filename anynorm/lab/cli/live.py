"""Terminal output of a comparison: a live table during training, and the final table.

If stderr is not a terminal, one line per finished run is printed instead of the live table.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from anynorm.cli.options import make_console
from anynorm.lab.report.results import Row, common_metric, metric_of, rank, result_of, select
from anynorm.lab.report.robustness import attacks_of
from anynorm.lab.training.statistics import Result
from anynorm.progress import reserve_display

if TYPE_CHECKING:
    from anynorm.lab.comparison.comparison import Comparison
    from anynorm.table import Table

WIDE = 100
"""Minimum width of a terminal, in columns, for the table to include the memory."""


def watch(comparison: Comparison, new_rows: Iterable[Row]) -> None:
    """Show the results of a comparison as its runs finish.

    Args:
        comparison: the comparison.
        new_rows: an iterable that yields the row of each run when the run ends.
    """
    rows = comparison.rows()
    missing = len(comparison.sweep.missing(rows))
    if not sys.stderr.isatty():
        _print_lines(new_rows, missing)
        return
    progress = Progress(
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("remaining"),
        TimeRemainingColumn(),
    )
    task = progress.add_task("training", total=missing)
    live = Live(Group(_metric_table(comparison, rows), progress), console=Console(stderr=True), transient=True)
    with reserve_display(), live:
        for row in new_rows:
            rows.append(row)
            progress.advance(task)
            live.update(Group(_metric_table(comparison, rows), progress), refresh=True)


def _print_lines(new_rows: Iterable[Row], missing: int) -> None:
    start = time.monotonic()
    for number, row in enumerate(new_rows, 1):
        metric = metric_of(row)
        result = "failed" if row["value"] is None else metric.describe(row["value"], "test ")
        cell = f"{row['norm']}, batch size {row['batch_size']}, seed {row['seed']}"
        sys.stderr.write(f"[{number}/{missing}] {cell}: {result} ({time.monotonic() - start:.0f} s)\n")


def _metric_table(comparison: Comparison, rows: Sequence[Row]) -> RichTable:
    """Return the table of the metric of all finished runs."""
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    for title in ("norm", *(f"test {comparison.metric.label}\nbatch {size}" for size in comparison.batch_sizes)):
        table.add_column(title)
    for norm in comparison.norms:
        results = [result_of(select(rows, norm, size)) for size in comparison.batch_sizes]
        table.add_row(norm, *(_describe(result, comparison) for result in results))
    return table


def _describe(result: Result, comparison: Comparison) -> str:
    """Return a result as text, with the number of finished runs if some are missing."""
    finished = result.n + result.num_failed
    if not finished:
        return "…"
    progress = f"  ({finished}/{comparison.seeds})" if finished < comparison.seeds else ""
    return format(result, comparison.metric.result_format) + progress


def print_comparison(comparison: Comparison, table: Table) -> None:
    """Print the results of a comparison, then the meaning of the columns, then the recommendation."""
    console = make_console()
    rows = comparison.rows()
    tested = {size: ranking for size in comparison.batch_sizes if (ranking := rank(rows, size)).is_tested}
    grid = RichTable(box=None, pad_edge=False, header_style="bold")
    grid.add_column("norm")
    measure = common_metric(rows)
    robust = [f"robust error % ({mode} {attack})" for attack in attacks_of(rows) for mode in ("eval-mode", "train-mode")]
    metrics = [measure.label, *robust, "shift", "step time", *(["memory"] if console.width >= WIDE else [])]
    pairs = [(metric, size) for metric in metrics for size in comparison.batch_sizes]
    columns = [(metric, size) for metric, size in pairs if any(line[f"{metric}, batch {size}"] is not None for line in table)]
    for metric, size in columns:
        title = f"test {metric}" if metric == measure.label else metric.replace(" (", "\n(")
        grid.add_column(f"{title}\nbatch {size}", no_wrap=True)
    for line in table:
        cells = []
        for metric, size in columns:
            value = line[f"{metric}, batch {size}"]
            is_marked = metric == measure.label and size in tested and line["norm"] in tested[size].alike
            text = "" if value is None else format(value, table.formats.get(f"{metric}, batch {size}", ".2f"))
            cells.append(f"{text} *" if is_marked else text)
        grid.add_row(line["norm"], *cells)
    with console.capture() as capture:
        console.print(grid, highlight=False)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())
    legend, _, recommendation = table.finding.rpartition("\n")
    best, other = ("highest", "lower") if measure.higher_is_better else ("lowest", "higher")
    star = f"* {best} {measure.name}, or not significantly {other}. " if tested else ""
    sys.stdout.flush()
    text = f"{star}{legend}\n\n{recommendation}"
    console.print(text, highlight=False, markup=False, soft_wrap=not console.is_terminal)
