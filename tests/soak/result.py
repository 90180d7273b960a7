"""The file of the results of the soak."""

import json
from pathlib import Path
from typing import Any

from anynorm.lab.training.provenance import provenance


def write_result(path: Path | None, name: str, result: dict[str, Any]) -> None:
    """Replace the result of a name in a JSON file, with the commit, versions and hardware; nothing without a path."""
    if path is not None:
        results = json.loads(path.read_text()) if path.exists() else {}
        results[name] = {**result, **provenance()}
        path.write_text(json.dumps(results, indent=1) + "\n")


def read_result(path: Path | None, name: str, seed: int) -> dict[str, Any]:
    """Return the result of a name with this seed at this commit; empty if there is none."""
    results = json.loads(path.read_text()) if path is not None and path.exists() else {}
    result: dict[str, Any] = results.get(name, {})
    return result if (result.get("seed"), result.get("commit")) == (seed, provenance()["commit"]) else {}
