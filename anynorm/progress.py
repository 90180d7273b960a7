"""Progress bars with rate and remaining time (rich); no output if stderr is not a terminal, or if another display is active."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

T = TypeVar("T")
_active_displays: list[object] = []
"""The active displays of all threads; at most one is drawn at a time."""


@contextmanager
def reserve_display() -> Iterator[None]:
    """Reserve the terminal for another display: progress bars inside the `with` block are not drawn."""
    token = object()
    _active_displays.append(token)
    try:
        yield
    finally:
        _active_displays.remove(token)


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield items and draw a progress bar on a terminal.

    Args:
        items: Iterable of items.
        description: Text before the bar.
        total: Maximum number of items to yield, and the total of the bar; None for all items, with `len(items)` as the total if
            it is defined.

    >>> list(track("abcd", "reading", total=3))
    ['a', 'b', 'c']
    """
    progress = _make_progress(_item_columns)
    limited = items if total is None else islice(items, total)
    if progress is None:
        yield from limited
        return
    length = len(items) if total is None and isinstance(items, Sized) else total
    with reserve_display(), progress:
        yield from progress.track(limited, total=length, description=description)


class Bar:
    """Progress bar of a quantity that grows from 0 to a total, inside a `with` block.

    Args:
        description: Text before the bar.
        total: The total.

    >>> with Bar("training", 2.0) as bar:
    ...     bar.update(1.5)
    """

    def __init__(self, description: str, total: float) -> None:
        self._description, self._total = description, total
        self._stack = ExitStack()
        self._progress: Progress | None = None

    def __enter__(self) -> Bar:
        self._progress = _make_progress(_part_columns)
        if self._progress is not None:
            self._stack.enter_context(reserve_display())
            self._stack.enter_context(self._progress)
            self._progress.add_task(self._description, total=self._total)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def update(self, completed: float) -> None:
        """Set the quantity."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=completed)


class ByteProgress:
    """Progress bar of bytes, with the part of the tqdm interface that `pooch.HTTPDownloader(progressbar=…)` needs."""

    def __init__(self, progress: Progress, description: str) -> None:
        self._progress = progress
        self._task: TaskID = progress.add_task(description, total=None)

    @property
    def total(self) -> float | None:
        """Total number of bytes."""
        return self._progress.tasks[0].total

    @total.setter
    def total(self, value: int) -> None:
        self._progress.update(self._task, total=value or None)

    def update(self, count: int) -> None:
        """Add `count` bytes."""
        self._progress.advance(self._task, count)

    def reset(self) -> None:
        """Set the number of bytes to 0."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Do nothing; `track_bytes` removes the bar, even after an error."""


@contextmanager
def track_bytes(description: str) -> Iterator[ByteProgress | None]:
    """Draw a progress bar for a download inside a `with` block; yield None if no bar can be drawn."""
    progress = _make_progress(_byte_columns)
    if progress is None:
        yield None
        return
    with reserve_display(), progress:
        yield ByteProgress(progress, description)


def _make_progress(make_columns: Callable[[], list[ProgressColumn]]) -> Progress | None:
    """Return a progress bar on stderr; None if stderr is not a terminal, another display is active, or rich is not installed."""
    if _active_displays or not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        return None
    return Progress(*make_columns(), console=Console(stderr=True), transient=True)


def _item_columns() -> list[ProgressColumn]:
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class RateColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:.1f}/s")

    return [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), RateColumn(), TimeRemainingColumn()]


def _part_columns() -> list[ProgressColumn]:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

    return [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()]


def _byte_columns() -> list[ProgressColumn]:
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    return [TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()]
