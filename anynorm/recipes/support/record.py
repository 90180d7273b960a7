"""What a recipe measured, as numbers in a file, with what is needed to do it again."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict, dataclass, field
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
