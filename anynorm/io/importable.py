"""The current folder as a place of modules, for commands that are given a user's `module:name`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def importable_folder() -> Iterator[None]:
    """Make the modules of the current folder importable inside a `with` block, also for processes that are started there."""
    folder = str(Path.cwd())
    if "" in sys.path or folder in sys.path:
        yield
        return
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
