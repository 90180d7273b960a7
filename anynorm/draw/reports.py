"""Plots of `DiagnosticReport`s: one function per kind of report, with the name of the kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anynorm.diagnostics.adaptation import VARIANTS
from anynorm.diagnostics.report import DiagnosticReport
from anynorm.draw.axes import COLORS, FigureAndAxes, cycle_colors, get_axes, set_legend_above, set_names, wide_size
from anynorm.draw.charts import curves


def estimation_shift(report: DiagnosticReport, ax: Any = None) -> FigureAndAxes:
    """Plot the shift of each norm as bars, and the change of the output when only this norm is corrected as dots.

    Args:
        report: a report of `anynorm.diagnostics.estimation_shift`.
        ax: matplotlib axes; None makes a new figure.

    Returns:
        (fig, ax)

    >>> report = DiagnosticReport([{"path": "bn1", "shift": 0.4}], "", "estimation_shift", "shift")
    >>> fig, ax = estimation_shift(report)
    >>> float(ax.patches[0].get_height())
    0.4
    """
    rows = [row for row in report if "shift" in row]
    fig, ax = get_axes(ax, wide_size(len(rows)))
    positions = np.arange(len(rows))
    label = "shift (0: exact; 1: mean off by one standard deviation, or std by a factor e)"
    ax.bar(positions, [row["shift"] for row in rows], color=COLORS[0], label=label)
    if all("output_error" in row for row in rows):
        errors = [row["output_error"] for row in rows]
        ax.plot(positions, errors, "o", color=COLORS[1], label="relative change of the output when this norm alone is corrected")
    set_names(ax, [row["path"] for row in rows], "norm, in the order they run")
    ax.set(ylabel="estimation shift (standard deviations)", title="Running statistics against the data")
    set_legend_above(ax)
    return fig, ax


def fluctuation(report: DiagnosticReport, ax: Any = None) -> FigureAndAxes:
    """Plot the fluctuation of each statistic in each norm as bars (hn Fig. 6).

    Args:
        report: a report of `anynorm.diagnostics.fluctuation` or `batch_fluctuation`.
        ax: matplotlib axes; None makes a new figure.

    Returns:
        (fig, ax)

    >>> report = DiagnosticReport([{"path": "bn1", "bn_std": 0.2}], "", "fluctuation", "bn_std", {"bn1": {"bn_std": None}})
    >>> fluctuation(report)[1].get_title()
    'Fluctuation of batch statistics'
    """
    rows = [row for row in report if "note" not in row]
    columns = list(next(iter(report.details.values())))
    fig, ax = _bars(rows, columns, ax, "norm")
    ax.set(title="Fluctuation of batch statistics", ylabel="standard deviation over the last steps")
    set_legend_above(ax)
    return fig, ax


def gradient_balance(report: DiagnosticReport, ax: Any = None) -> FigureAndAxes:
    """Plot the relative standard deviation of the gradient norms of classes, and the mean cosine between classes, per stage.

    Args:
        report: a report of `anynorm.diagnostics.gradient_balance`.
        ax: matplotlib axes; None makes a new figure.

    Returns:
        (fig, ax)

    >>> report = DiagnosticReport([{"stage": "0", "relative_std": 0.2, "g_inter": 0.5}], "", "gradient_balance", "relative_std")
    >>> [float(bar.get_height()) for bar in gradient_balance(report)[1].patches]
    [0.2, 0.5]
    """
    fig, ax = _bars(report.rows, ["relative_std", "g_inter"], ax, "stage")
    ax.set(title="Balance of class gradients", ylabel="ratio or cosine (lower is better)")
    set_legend_above(ax, ["std of gradient norms over classes, relative to their mean", r"$g_\mathrm{inter}$ (mean cosine)"])
    return fig, ax


def adaptation(report: DiagnosticReport, ax: Any = None) -> FigureAndAxes:
    """Plot the score on each data set with each kind of statistics as bars.

    Args:
        report: a report of `anynorm.diagnostics.adaptation`.
        ax: matplotlib axes; None makes a new figure.

    Returns:
        (fig, ax)

    >>> row = {"data": "night", "source": 29.0, "recalibrated": 65.0, "mixed": 60.0, "per_batch": 64.0}
    >>> [float(bar.get_height()) for bar in adaptation(DiagnosticReport([row], "", "adaptation", "shift"))[1].patches]
    [29.0, 65.0, 60.0, 64.0]
    """
    fig, ax = _bars(report.rows, VARIANTS, ax, "data")
    ax.set(title="Adapted statistics", ylabel="score (%)")
    set_legend_above(ax)
    return fig, ax


def _bars(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], ax: Any, xlabel: str) -> FigureAndAxes:
    """Plot one group of bars per row, with one bar per column; the first entry of a row is its name."""
    fig, ax = get_axes(ax, wide_size(len(rows) * len(columns) / 2))
    width = 0.8 / len(columns)
    for k, (column, color) in enumerate(zip(columns, cycle_colors(len(columns)), strict=True)):
        positions = np.arange(len(rows)) + (k - (len(columns) - 1) / 2) * width
        ax.bar(positions, [row[column] for row in rows], width, color=color, label=column.replace("_", " "))
    set_names(ax, [next(iter(row.values())) for row in rows], xlabel)
    return fig, ax


def importance(report: DiagnosticReport, ax: Any = None) -> FigureAndAxes:
    """Plot the mixing weights of each norm as stacked bars, one for the mean and one, hatched, for the variance (sn Fig. 7).

    Args:
        report: a report of `anynorm.diagnostics.importance`.
        ax: matplotlib axes; None makes a new figure.

    Returns:
        (fig, ax)

    >>> rows = [{"path": "0", "mean_in": 0.25, "mean_bn": 0.75}]
    >>> report = DiagnosticReport(rows, "", "importance", "max_weight", {"means": {"mean_in": 0.25, "mean_bn": 0.75}})
    >>> [float(bar.get_height()) for bar in importance(report)[1].patches][:2]
    [0.25, 0.75]
    """
    fig, ax = get_axes(ax, wide_size(len(report) * 1.5))
    cuts = list(dict.fromkeys(column.partition("_")[2] for column in report.details["means"]))
    for side, offset, hatch in (("mean", -0.21, ""), ("var", 0.21, "//")):
        bottom = np.zeros(len(report))
        for cut, color in zip(cuts, cycle_colors(len(cuts)), strict=True):
            weights = np.array([row.get(f"{side}_{cut}", 0.0) for row in report])
            label = cut if side == ("mean" if any(f"mean_{cut}" in row for row in report) else "var") else None
            positions = np.arange(len(report)) + offset
            ax.bar(positions, weights, 0.4, bottom, color=color, hatch=hatch, edgecolor="white", linewidth=0.4, label=label)
            bottom += weights
    set_names(ax, [row["path"] for row in report], "norm")
    ax.set(ylabel="mixing weight", ylim=(0, 1), title="Learned mixing weights: mean (left) and variance (right, hatched)")
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return fig, ax


def perturbation(report: DiagnosticReport, ax: Any = None) -> FigureAndAxes:
    """Plot the score of a model against the size of the perturbation.

    Args:
        report: a report of `anynorm.diagnostics.perturbation_curve`.
        ax: matplotlib axes; None makes a new figure.

    Returns:
        (fig, ax)

    >>> rows = [{"delta": 0.0, "score": 91.0, "sd": 0.0}, {"delta": 0.5, "score": 60.0, "sd": 4.0}]
    >>> perturbation(DiagnosticReport(rows, "", "perturbation", "score_drop", {"per": "layer"}))[1].get_xlabel()
    'noise magnitude Δ (relative)'
    """
    fig, ax = curves({"model": report.rows}, ax)
    ax.get_legend().remove()
    ax.set_title(f"Running statistics perturbed per {report.details['per']}, mean ± sd over draws")
    return fig, ax
