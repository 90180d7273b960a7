"""The norms of a model, as they are."""

from __future__ import annotations

from typing import Any

from torch import nn

from anynorm.surgery.reading import Reading
from anynorm.surgery.report import Report
from anynorm.surgery.walk import find_sites


def inspect(model: nn.Module) -> Report:
    """List the norms of a model: path, class, spec, channels, what is kept."""
    rows: list[dict[str, Any]] = []
    for site in find_sites(model):
        row: dict[str, Any] = {"path": site.path, "class": type(site.module).__name__}
        reading = site.reading
        if isinstance(reading, Reading):
            kept = "statistics" if reading.kept else "nothing"
            row |= {"spec": reading.spec, "channels": reading.channels, "keeps": kept, "eps": reading.eps}
        else:
            row["note"] = reading
        if len(site.paths) > 1:
            row["note"] = f"shared: also {', '.join(site.paths[1:])}"
        rows.append(row)
    specs = dict.fromkeys(row["spec"] for row in rows if "spec" in row)
    finding = f"{len(rows)} norms" + (f": {', '.join(specs)}." if specs else ".")
    return Report(rows, finding, model)
