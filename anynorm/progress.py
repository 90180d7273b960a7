"""A progress bar with rate and time left on a terminal; nothing where there is none, or where another display is up already."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from itertools import islice
from typing import Any

_displays: list[object] = []
"""The displays that are up, in whatever thread: a terminal has room for one."""


@contextmanager
def reserve_display() -> Iterator[None]:
    """Keep the terminal for one display: bars inside the block are not drawn."""
    mine = object()
    _displays.append(mine)
    try:
        yield
    finally:
        _displays.remove(mine)


def track(items: Iterable[Any], what: str, most: int | None = None) -> Iterator[Any]:
    """Give the items on, at most so many, with a bar on a terminal."""
    taken = items if most is None else islice(items, most)
    bar = None if _displays or not sys.stderr.isatty() else _bar(most is not None or isinstance(items, Sized))
    if bar is None:
        yield from taken
        return
    total = most if most is not None else len(items) if isinstance(items, Sized) else None
    with reserve_display(), bar:
        task = bar.add_task(what, total=total)
        for item in taken:
            yield item
            bar.advance(task)


def _bar(is_sized: bool) -> Any:
    """Make a bar; None where rich is not there: it comes with the command line, and a library call does without."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
        from rich.text import Text
    except ImportError:
        return None

    class Rate(ProgressColumn):
        """Items a second, once that is known."""

        def render(self, task: Any) -> Text:
            return Text("" if task.speed is None else f"{task.speed:.1f}/s")

    words = TextColumn("{task.description}")
    columns = (words, BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn()) if is_sized else (words, Rate())
    return Progress(*columns, console=Console(stderr=True), transient=True)
