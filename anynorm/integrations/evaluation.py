"""Recalibration and estimation shift around an evaluation, without side effects on the data loaders of the training loop."""

from __future__ import annotations

from itertools import islice
from typing import Any

from torch import nn

from anynorm.diagnostics.estimation_shift import estimation_shift
from anynorm.diagnostics.report import DiagnosticReport
from anynorm.integrations.loaders import isolated_loader
from anynorm.surgery.batches import Forward
from anynorm.surgery.recalibrate import recalibrate


def recalibrate_from(loader: Any, model: nn.Module, batches: int | None, *, forward: Forward, estimator: str) -> None:
    """Estimate the running statistics of a model from the first batches of a loader; None for all of them.

    Raises:
        DataError: if `loader` is a collection of loaders, or None.
    """
    with isolated_loader(loader) as isolated:
        recalibrate(model, islice(isolated, batches), estimator=estimator, forward=forward)


def shift_metrics_from(loader: Any, model: nn.Module, batches: int | None, *, forward: Forward, prefix: str) -> dict[str, float]:
    """Return the `shift_metrics` of a model on the first batches of a loader; None for all of them.

    Raises:
        DataError: if `loader` is a collection of loaders, or None.
    """
    with isolated_loader(loader) as isolated:
        report = estimation_shift(model, islice(isolated, batches), forward=forward, trial_samples=0)
    return shift_metrics(report, prefix)


def shift_metrics(report: DiagnosticReport, prefix: str) -> dict[str, float]:
    """Return the largest estimation shift and that of each measured norm as a flat dictionary, for the logger of a trainer.

    >>> report = DiagnosticReport([{"path": "bn1", "shift": 0.5}, {"path": "bn2"}], "", "estimation_shift", "shift")
    >>> shift_metrics(report, "estimation_shift")
    {'estimation_shift/max': 0.5, 'estimation_shift/bn1': 0.5}
    """
    shifts = {row["path"] or "model": float(row["shift"]) for row in report.rows if row.get("shift") is not None}
    return {f"{prefix}/max": max(shifts.values())} | {f"{prefix}/{path}": shift for path, shift in shifts.items()}
