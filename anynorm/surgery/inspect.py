"""Listing of the norms of a model."""

from __future__ import annotations

from typing import Any

from torch import nn

from anynorm.surgery.find import find_norms
from anynorm.surgery.report import SurgeryReport


def inspect(model: nn.Module) -> SurgeryReport:
    """Return a report that lists the norms of a model.

    Returns:
        A report with one row per norm: path, class, spec, number of channels, whether it has running statistics, eps, and the
        axis of the channels if it is not 1.

    >>> print(inspect(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.GroupNorm(2, 8))))
    path  class        spec  channels  running_stats  eps
    1     BatchNorm2d  bn    8         yes            1e-05
    3     GroupNorm    gn:2  8         no             1e-05
    2 norms: bn, gn:2.
    """
    rows: list[dict[str, Any]] = []
    for site in find_norms(model):
        info = None if site.unsupported else site.info
        row: dict[str, Any] = {"path": site.path, "class": type(site.module).__name__}
        row |= {"spec": info and info.spec, "channels": info and info.channels}
        row |= {"running_stats": info and ("yes" if info.running_stats else "no"), "eps": info and info.eps}
        row |= {} if info is None or info.channel_axis == 1 else {"channel_axis": info.channel_axis}
        shared = f"shared with {', '.join(site.paths[1:])}" if len(site.paths) > 1 else ""
        note = "; ".join(text for text in (site.unsupported, shared) if text)
        rows.append(row | ({"note": note} if note else {}))
    specs = ", ".join(dict.fromkeys(row["spec"] for row in rows if row["spec"]))
    unsupported = ", ".join(row["path"] or "the model itself" for row in rows if not row["spec"])
    finding = f"{len(rows)} norm{'' if len(rows) == 1 else 's'}" + (f": {specs}." if specs else ".")
    return SurgeryReport(rows, finding + (f" Not supported: {unsupported}." if unsupported else ""), model)
