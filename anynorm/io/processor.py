"""The name of the processor."""

from __future__ import annotations

import platform
from pathlib import Path


def processor_name() -> str:
    """Return the model name of the processor, or its architecture if the system does not have the name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
