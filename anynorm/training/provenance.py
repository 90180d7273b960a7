"""Which code, versions and hardware produced a result."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any


def provenance() -> dict[str, Any]:
    """Say which code, versions and hardware are at work."""
    packages = ("torch", "numpy", "numba")
    return {
        "commit": _commit(Path(__file__).parent),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
        "hardware": _processor(),
        "cores": cpu_count(),
    }


def cpu_count() -> int:
    """Count the cores there are for us."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache
def _commit(here: Path) -> str:
    """Give the commit of the code as it was when somebody first asked, with a + where files had changed since."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"], cwd=here, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
