"""Sharing a pass out: torch's thread count is obeyed, a forked child starts its own threads, and Python threads do not meet.

Kernels are serial and let go of the interpreter; a range of rows goes to each thread, always the same one for the same number
of threads, so that results are the same from run to run.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

SMALLEST = 1 << 19  # values a thread must have to be worth waking: below 4 MB two threads took as long as one, or longer
_pool: ThreadPoolExecutor | None = None
_ready: set[Hashable] = set()


def _forget() -> None:
    global _pool  # noqa: PLW0603  # the threads of a parent do not exist in its forked child
    _pool = None


os.register_at_fork(after_in_child=_forget)


def run(kernel: Callable[..., None], values: int, rows: int, arguments: tuple[Any, ...]) -> None:
    """Call kernel(*arguments, lo, hi) over [0, rows), in parallel where `values` make it worth while."""
    threads = min(torch.get_num_threads(), rows, max(1, values // SMALLEST))
    if threads <= 1:
        kernel(*arguments, 0, rows)
        return
    ends = [rows * k // threads for k in range(threads + 1)]
    others = [_workers().submit(kernel, *arguments, ends[k], ends[k + 1]) for k in range(1, threads)]
    kernel(*arguments, 0, ends[1])
    for other in others:
        other.result()


class Announced:
    """Says that kernels are compiled, once for each machine, where what is done first takes more than a second."""

    def __init__(self, what: Hashable) -> None:
        self.what = what
        self.timer: threading.Timer | None = None

    def __enter__(self) -> None:
        if self.what not in _ready:
            message = "anynorm: compiling its CPU kernels; they are kept for the next time.\n"
            self.timer = threading.Timer(1.0, sys.stderr.write, [message])
            self.timer.daemon = True
            self.timer.start()

    def __exit__(self, *_: object) -> None:
        if self.timer is not None:
            self.timer.cancel()
            _ready.add(self.what)


def _workers() -> ThreadPoolExecutor:
    global _pool  # noqa: PLW0603
    if _pool is None:
        _pool = ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 1) - 1), thread_name_prefix="anynorm")
    return _pool
