"""Diagnostics as flat dictionaries of numbers, which the loggers of training frameworks take."""

from __future__ import annotations

from anynorm.diagnostics.report import DiagnosticReport


def shift_metrics(report: DiagnosticReport, prefix: str) -> dict[str, float]:
    """Return the largest estimation shift, and that of each norm that was reached.

    >>> report = DiagnosticReport([{"path": "bn1", "shift": 0.5}, {"path": "bn2"}], "", "estimation_shift", "shift")
    >>> shift_metrics(report, "estimation_shift")
    {'estimation_shift/max': 0.5, 'estimation_shift/bn1': 0.5}
    """
    shifts = {row["path"] or "model": float(row["shift"]) for row in report.rows if row.get("shift") is not None}
    return {f"{prefix}/max": max(shifts.values())} | {f"{prefix}/{path}": shift for path, shift in shifts.items()}
