"""Who does a pass: the threads torch itself runs on, as many as torch is set to.

torch's own OpenMP library is asked to run the passes, so no second set of threads waits for the same cores, and waking them
costs a few microseconds. Each thread has its range of rows, always the same one for the same number of threads, so that results
are the same from run to run. Python threads do not meet: OpenMP keeps a team for each. A forked child works alone, for the
threads of its parent do not exist in it; so does everybody where torch has no such library.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anynorm.kernels._numba import jobs

SMALLEST = 1 << 15  # values a thread must have to be worth waking
_teams: dict[tuple[int, bool, int, int], Any] = {}
_scratch = threading.local()
_entries: tuple[int, int] | None = None


def team(last: bool, width: int) -> Any:
    """Return how a pass over a layout, of values of a width in bytes, is shared out: see the places in `whole`."""
    key = (torch.get_num_threads(), last, width, SMALLEST)
    found = _teams.get(key)
    if found is None:
        with Announced():
            parallel, number = _find_openmp()
            threads = key[0] if parallel else 1
            found = _teams[key] = np.array([threads, parallel, number, jobs.body(last, width), SMALLEST])
    return found


def scratch_of(size: int) -> Any:
    """Return this Python thread's numbers to work on, kept from pass to pass: fresh memory costs more than the work."""
    found = getattr(_scratch, "numbers", None)
    if found is None or len(found) < size:
        found = _scratch.numbers = np.empty(size)
    return found


def _find_openmp() -> tuple[int, int]:
    """Return the addresses of GOMP_parallel and omp_get_thread_num in the library that torch has loaded, or zeros."""
    global _entries  # noqa: PLW0603
    if _entries is None:
        suffix = ".dylib" if sys.platform == "darwin" else ".so"
        try:
            library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"libtorch_cpu{suffix}"))
            found = [ctypes.cast(entry, ctypes.c_void_p).value for entry in (library.GOMP_parallel, library.omp_get_thread_num)]
            _entries = (found[0] or 0, found[1] or 0)
        except (OSError, AttributeError):
            _entries = (0, 0)
    return _entries


def _work_alone() -> None:
    global _entries  # noqa: PLW0603
    _entries = (0, 0)
    _teams.clear()


if hasattr(os, "register_at_fork"):  # where there are forks
    os.register_at_fork(after_in_child=_work_alone)


class Announced:
    """Says that kernels are compiled, once for each machine, where what is done inside takes more than a second."""

    def __enter__(self) -> None:
        message = "anynorm: compiling its CPU kernels; they are kept for the next time.\n"
        self.timer = threading.Timer(1.0, sys.stderr.write, [message])
        self.timer.daemon = True
        self.timer.start()

    def __exit__(self, *_: object) -> None:
        self.timer.cancel()
