"""Run all operations on all models and write the results to docs/interop.json.

    python -m tests.interop.run [NAME ...]      (or: make interop-results)

Without names, the operations that have no results yet are measured. With names, these models are measured again.
"""

import json
import platform
import sys
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from tests.interop.operators import prepare_torchvision

RESULTS = Path(__file__).parents[2] / "docs" / "interop.json"
PACKAGES = ("torch", "timm", "torchvision", "segmentation_models_pytorch", "transformers")


def main(names: list[str]) -> None:
    """Measure models and write their rows."""
    torch.set_num_threads(1)
    prepare_torchvision()
    from tests.interop.models import all_models
    from tests.interop.operations import OPERATIONS, measure

    rows: dict[tuple[str, str], dict[str, Any]] = {}
    if RESULTS.exists():
        rows = {(row["package"], row["name"]): row for row in json.loads(RESULTS.read_text())["models"]}
    models = all_models()
    pending = [(model, tuple(OPERATIONS)) for name in names for model in models if model.name == name]
    if not names:
        missing = [(model, missing_operations(rows.get((model.package, model.name)), OPERATIONS)) for model in models]
        pending = [(model, operations) for model, operations in missing if operations]
    for number, (model, operations) in enumerate(pending, start=1):
        start = time.perf_counter()
        row = measure(model, operations)
        if "operations" in row:
            results = rows.get((model.package, model.name), {}).get("operations", {}) | row["operations"]
            row["operations"] = {name: results[name] for name in OPERATIONS if name in results}
        rows[model.package, model.name] = row
        outcomes = row.get("error") or " ".join(f"{name}:{outcome['result']}" for name, outcome in row["operations"].items())
        sys.stdout.write(f"{number}/{len(pending)} {model.package} {model.name} {time.perf_counter() - start:.1f} s {outcomes}\n")
        sys.stdout.flush()
        write_results(rows, models)


def missing_operations(row: dict[str, Any] | None, operations: Iterable[str]) -> tuple[str, ...]:
    """Return the operations without a result in a row; none for a model that does not run."""
    if row is not None and "error" in row:
        return ()
    return tuple(name for name in operations if row is None or name not in row["operations"])


def write_results(rows: dict[tuple[str, str], dict[str, Any]], models: list[Any]) -> None:
    """Write the rows in the order of the models, and the names of models without a row."""
    keys = [(model.package, model.name) for model in models]
    results = {
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "missing": [f"{package} {name}" for package, name in keys if (package, name) not in rows],
        "models": [rows[key] for key in keys if key in rows],
    }
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
