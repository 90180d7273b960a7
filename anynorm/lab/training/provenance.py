"""The code, versions and hardware that produced a result."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from anynorm.io.processor import processor_name

PACKAGES = ("torch", "numpy")


def provenance() -> dict[str, Any]:
    """Return the commit, the versions of Python and of the installed `PACKAGES`, the processor and the number of cores."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "commit": _commit(Path(__file__).parent),
        "python": platform.python_version(),
        **versions,
        "hardware": processor_name(),
        "cores": cpu_count(),
    }


def cpu_count() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache
def _commit(folder: Path) -> str:
    """Return the commit of the code, with "+" if there are uncommitted changes; cached, since loaded code does not change."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"], cwd=folder, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()
