"""Plots of reports and values: each function takes an optional matplotlib `ax` and returns `(fig, ax)`; no global style is set.

    adaptation estimation_shift fluctuation gradient_balance importance perturbation      one per kind of `DiagnosticReport`
    profiles    a column of one or several reports over the layers
    series      batch statistics of one channel over the last training steps
    curves      score against the size of a perturbation, for one or several models
    lines       mean and standard deviation of values against a setting
    heatmap     a heat map of a matrix; `annotated_heatmap` also writes its values
    cuts        the values that share a statistic of a norm, in a block of samples × channels × positions; see also `save_cuts`

Only this package imports matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from anynorm.diagnostics.report import DiagnosticReport
from anynorm.draw.axes import COLORS as COLORS
from anynorm.draw.axes import FigureAndAxes, get_axes
from anynorm.draw.charts import annotated_heatmap, curves, heatmap, lines, profiles, series
from anynorm.draw.cut_drawing import cuts, save_cuts
from anynorm.draw.reports import adaptation, estimation_shift, fluctuation, gradient_balance, importance, perturbation
from anynorm.errors import DataError

__all__ = [
    "adaptation",
    "annotated_heatmap",
    "curves",
    "cuts",
    "estimation_shift",
    "fluctuation",
    "gradient_balance",
    "heatmap",
    "importance",
    "lines",
    "perturbation",
    "profiles",
    "save",
    "save_cuts",
    "series",
]


PLOTS: dict[str, Callable[[DiagnosticReport], FigureAndAxes]] = {
    "adaptation": adaptation,
    "estimation_shift": estimation_shift,
    "fluctuation": fluctuation,
    "gradient_balance": gradient_balance,
    "importance": importance,
    "perturbation": perturbation,
}
"""The plot function of each kind of report."""


def save(report: DiagnosticReport, path: Path | str) -> None:
    """Write the plot of a report to a file.

    Args:
        report: the report.
        path: file to write; its suffix determines the format, such as .png, .pdf or .svg.

    Raises:
        DataError: if matplotlib is not installed, the suffix is not a picture format, or the folder does not exist.

    >>> import tempfile, torch, anynorm.diagnostics
    >>> report = anynorm.diagnostics.estimation_shift(torch.nn.BatchNorm1d(4), torch.randn(64, 4))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(report, f"{folder}/shift.png")
    """
    check_picture(path)
    fig, _ = PLOTS[report.kind](report)
    fig.savefig(path, dpi=150)


def check_picture(path: Path | str) -> None:
    """Check that matplotlib can write a picture to `path`; call this function before a long computation.

    Raises:
        DataError: if matplotlib is not installed, the suffix is not a picture format, or the folder does not exist.

    >>> check_picture("shift.doc")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    anynorm.errors.DataError: shift.doc must have the suffix of a picture. Usable: ...
    """
    path = Path(path)
    fig, _ = get_axes(None)
    suffixes = sorted(f".{suffix}" for suffix in fig.canvas.get_supported_filetypes())
    if path.suffix not in suffixes:
        raise DataError(f"{path} must have the suffix of a picture. Usable: {' '.join(suffixes)}.")
    if not path.absolute().parent.is_dir():
        raise DataError(f"The folder {path.parent} of {path.name} does not exist. Create it first.")
