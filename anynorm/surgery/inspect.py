"""The norms of a model, as they are."""

from __future__ import annotations

from typing import Any

from torch import nn

from anynorm.surgery.adapters import NormInfo
from anynorm.surgery.find import find_norms
from anynorm.surgery.report import Report


def inspect(model: nn.Module) -> Report:
    """List the norms of a model: path, class, spec, channels, what is kept."""
    rows: list[dict[str, Any]] = []
    for site in find_norms(model):
        row: dict[str, Any] = {"path": site.path, "class": type(site.module).__name__}
        reading = site.reading
        if isinstance(reading, NormInfo):
            kept = "statistics" if reading.running_stats else "nothing"
            row |= {"spec": reading.spec, "channels": reading.channels, "keeps": kept, "eps": reading.eps}
        else:
            row["note"] = reading
        if len(site.paths) > 1:
            row["note"] = f"shared: also {', '.join(site.paths[1:])}"
        rows.append(row)
    specs = dict.fromkeys(row["spec"] for row in rows if "spec" in row)
    finding = f"{len(rows)} norms" + (f": {', '.join(specs)}." if specs else ".")
    return Report(rows, finding, model)
