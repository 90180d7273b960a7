"""A comparison while it runs: a table that fills, and how long it will take; plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from anynorm.progress import reserve_display


def watch(plan: Any, ended: Iterable[Any], missing: int) -> None:
    """Show what has ended, as it ends."""
    if not sys.stderr.isatty():
        _tell(ended, missing)
        return
    columns = (
        TextColumn("comparing"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns)
    task = progress.add_task("comparing", total=missing)
    with reserve_display(), Live(Group(_table(plan), progress), console=Console(stderr=True), transient=True) as live:
        for _ in ended:
            progress.advance(task)
            live.update(Group(_table(plan), progress))


def _tell(ended: Iterable[Any], missing: int) -> None:
    began = time.monotonic()
    for count, config in enumerate(ended, 1):
        words = f"{count} of {missing}: {config.norm}, batch {config.batch_size}, seed {config.seed}"
        sys.stderr.write(f"{words} ({time.monotonic() - began:.0f} s)\n")


def _table(plan: Any) -> Table:
    """Make the table of errors as far as they are known."""
    from anynorm.compare import outcomes, told

    found = outcomes(plan)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("norm", *(f"error %, batch {size}" for size in plan.batch_sizes)):
        table.add_column(title)
    for norm in plan.norms:
        table.add_row(norm, *(told(found.get((norm, size), [])) or "…" for size in plan.batch_sizes))
    return table
