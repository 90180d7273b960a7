"""A progress bar with rate and time left on a terminal; nothing where there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import Any


def shown(items: Iterable[Any], what: str, most: int | None = None) -> Iterator[Any]:
    """Give the items on, at most so many, with a bar on a terminal."""
    taken = items if most is None else islice(items, most)
    if not sys.stderr.isatty():
        yield from taken
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:  # rich comes with the command line; a library call does without
        yield from taken
        return
    total = most if most is not None else len(items) if isinstance(items, Sized) else None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.speed:.1f}/s"),
        TimeRemainingColumn(),
    )
    plain = columns if total is not None else columns[:1]
    with Progress(*plain, console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(taken, total=total, description=what)
