"""What a recipe measured, as numbers in a file, with what is needed to do it again."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from anynorm.errors import DataError

Row = dict[str, Any]


@dataclass
class Record:
    """The rows of a recipe under a preset.

    Attributes:
        settings: the preset.
        rows: one a cell: what tells it from the others, and what was measured.
    """

    recipe: str
    preset: str
    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    minutes: float = 0.0
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def failures(self) -> str:
        """Why runs failed, in a sentence, in whatever step, and how many for each reason; '' where none did."""
        reasons = Counter(re.split(r"\. | in step | after step ", row["failed"])[0] for row in self.rows if row.get("failed"))
        return " ".join(f"{count} of {len(self.rows)} runs failed: {reason.rstrip('.')}." for reason, count in reasons.items())

    def write(self, path: Path) -> None:
        """Write the whole record or nothing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".part")
        rows = ",\n".join("    " + json.dumps(row) for row in self.rows)
        head = json.dumps({**asdict(self), "rows": []}, indent=2)
        fresh.write_text(head.replace('"rows": []', f'"rows": [\n{rows}\n  ]') + "\n")
        fresh.replace(path)


def read_record(path: Path) -> Record:
    """Read a record, or say what is wrong with the file."""
    try:
        return Record(**json.loads(path.read_text()))
    except FileNotFoundError:
        raise DataError(f"There is no record {path}.") from None
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} is no record: {error}.") from None


def provenance() -> dict[str, Any]:
    """Say which code, versions and hardware are at work."""
    packages = ("torch", "numpy", "numba")
    return {
        "commit": _commit(Path(__file__).parent),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
        "hardware": _processor(),
        "cores": cores(),
    }


def cores() -> int:
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
