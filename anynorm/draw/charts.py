"""Plots of values: profiles over layers, series over steps, curves, lines with standard deviations, and heat maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anynorm.diagnostics.report import DiagnosticReport
from anynorm.draw.axes import COLORS, FigureAndAxes, cycle_colors, get_axes
from anynorm.errors import DiagnosticError

Rows = Sequence[Mapping[str, Any]]


def profiles(reports: Mapping[str, Rows], column: str = "esm_std", ax: Any = None) -> FigureAndAxes:
    """Plot a column of several reports against the layer.

    Args:
        reports: mapping from label to a report or its rows. The x value of a row is its entry `layer`, or else its position,
            starting at 1.
        column: the column to plot; rows without this column are omitted.
        ax: matplotlib axes; None makes a new figure.

    Returns:
        (fig, ax)

    >>> fig, ax = profiles({"bn": [{"esm_std": 0.1}, {"esm_std": 0.4}]})
    >>> [int(layer) for layer in ax.lines[0].get_xdata()]
    [1, 2]
    """
    fig, ax = get_axes(ax)
    for (label, rows), color in zip(reports.items(), cycle_colors(len(reports)), strict=True):
        measured = [row for row in rows if column in row]
        layers = [row.get("layer", position) for position, row in enumerate(measured, 1)]
        ax.plot(layers, [row[column] for row in measured], "o-", color=color, label=label, markersize=4)
    symbols = {"esm_mean": r"$\mathrm{ESM}_\mu$", "esm_std": r"$\mathrm{ESM}_\sigma$"}
    ax.set(xlabel="layer", ylabel=symbols.get(column, column))
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.legend(frameon=False)
    return fig, ax


def series(report: DiagnosticReport, path: str, part: int = 0, ax: Any = None) -> FigureAndAxes:
    """Plot the batch statistics of one channel over the last training steps (hn Fig. 7).

    Args:
        report: a report of `anynorm.diagnostics.fluctuation`.
        path: path of the norm.
        part: index of the channel; for a statistic with fewer parts, its last part is plotted.
        ax: matplotlib axes; None makes a new figure.

    Returns:
        (fig, ax)

    Raises:
        DiagnosticError: if the report has no such norm or channel.

    >>> report = DiagnosticReport([], "", "fluctuation", "bn_std", {"bn1": {"bn_std": np.ones((5, 2))}})
    >>> len(series(report, "bn1", 1)[1].lines[0].get_ydata())
    5
    """
    if path not in report.details:
        raise DiagnosticError(f"The report has no series of '{path}'. Usable: {' '.join(report.details)}.")
    fig, ax = get_axes(ax)
    by_name = report.details[path]
    num_parts = max(steps.shape[1] for steps in by_name.values())
    if not 0 <= part < num_parts:
        raise DiagnosticError(f"part must be a channel of '{path}', 0 to {num_parts - 1}; got {part}.")
    for (name, steps), color in zip(by_name.items(), cycle_colors(len(by_name)), strict=True):
        values = steps[:, min(part, steps.shape[1] - 1)]
        ax.plot(np.arange(1, len(steps) + 1), values, color=color, lw=1, label=name.replace("_", " "))
    ax.set(xlabel="step", ylabel="value of the statistic", title=f"Channel {part} of {path}")
    ax.legend(frameon=False)
    return fig, ax


def curves(models: Mapping[str, Rows], ax: Any = None) -> FigureAndAxes:
    """Plot the score of several models against the size of the perturbation, with its standard deviation over draws (xbn Fig. 8).

    Args:
        models: mapping from label to the rows of a `perturbation_curve` (columns `delta score sd`).
        ax: matplotlib axes; None makes a new figure.

    Returns:
        (fig, ax)

    >>> rows = [{"delta": 0.0, "score": 91.0, "sd": 0.0}, {"delta": 0.5, "score": 60.0, "sd": 4.0}]
    >>> curves({"bn": rows})[1].get_ylabel()
    'score'
    """
    fig, ax = get_axes(ax)
    for (label, rows), color in zip(models.items(), cycle_colors(len(models)), strict=True):
        deltas, scores, sd = (np.array([row[column] for row in rows]) for column in ("delta", "score", "sd"))
        ax.plot(deltas, scores, "o-", color=color, label=label, markersize=4)
        ax.fill_between(deltas, scores - sd, scores + sd, color=color, alpha=0.15, linewidth=0)
    ax.set(xlabel="noise magnitude Δ (relative)", ylabel="score")
    ax.legend(frameon=False)
    return fig, ax


def lines(values: Mapping[str, Mapping[Any, Sequence[float]]], ax: Any = None, **labels: str) -> FigureAndAxes:
    """Plot mean and standard deviation of values against a setting, such as the batch size, with one line per label.

    Args:
        values: mapping from label to a mapping from setting to values, such as one value per seed; settings are equally spaced on
            the x axis.
        ax: matplotlib axes; None makes a new figure.
        **labels: properties of the axes, such as `xlabel`, `ylabel` (with the unit) and `title`.

    Returns:
        (fig, ax)

    >>> fig, ax = lines({"bn": {2: [51.0, 52.0], 32: [2.3, 2.5]}}, xlabel="batch size", ylabel="test error (%)")
    >>> [tick.get_text() for tick in ax.get_xticklabels()]
    ['2', '32']
    """
    fig, ax = get_axes(ax)
    settings = list(dict.fromkeys(setting for by_setting in values.values() for setting in by_setting))
    styles = [(color, style) for style in ("-", "--") for color in COLORS]
    shown = {label: by_setting for label, by_setting in values.items() if any(by_setting.values())}
    for k, (label, by_setting) in enumerate(shown.items()):
        measured = [setting for setting in settings if by_setting.get(setting)]
        means = [float(np.mean(by_setting[setting])) for setting in measured]
        sds = [float(np.std(by_setting[setting], ddof=1)) if len(by_setting[setting]) > 1 else 0.0 for setting in measured]
        positions = [settings.index(setting) + 0.02 * (k - len(shown) / 2) for setting in measured]
        color, style = styles[k % len(styles)]
        ax.errorbar(positions, means, sds, fmt="o", ls=style, color=color, label=label, markersize=4, capsize=2, lw=1.2)
    names = [f"{setting:g}" if isinstance(setting, int | float) else str(setting) for setting in settings]
    ax.set_xticks(range(len(settings)), names)
    ax.set(**labels)
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return fig, ax


def heatmap(table: Any, ax: Any = None, **labels: str) -> FigureAndAxes:
    """Plot a matrix as a heat map, with its first row at the bottom.

    Args:
        table: matrix of numbers, such as layers × steps.
        ax: matplotlib axes; None makes a new figure.
        **labels: properties of the axes, such as `xlabel`, and `label`, the label of the color bar.

    Returns:
        (fig, ax)

    >>> heatmap([[1, 2], [3, 4]], xlabel="step", ylabel="layer", label="shift")[1].get_xlabel()
    'step'
    """
    fig, ax = get_axes(ax)
    image = ax.imshow(np.asarray(table), aspect="auto", origin="lower", cmap="viridis", interpolation="nearest")
    fig.colorbar(image, ax=ax, label=labels.pop("label", ""))
    ax.set(**labels)
    return fig, ax


def annotated_heatmap(table: Any, names: tuple[Sequence[str], Sequence[str]], ax: Any = None, **labels: str) -> FigureAndAxes:
    """Plot a matrix as a heat map with its values as text; NaN is shown as a dash.

    Args:
        table: matrix of numbers.
        names: names of the rows, and names of the columns.
        ax: matplotlib axes; None makes a new figure.
        **labels: properties of the axes, such as `title`, and `label`, the label of the color bar.

    Returns:
        (fig, ax)

    >>> fig, ax = annotated_heatmap([[90.12, float("nan")]], (["bn"], ["bn", "ln"]), label="test accuracy (%)")
    >>> [text.get_text() for text in ax.texts]
    ['90.1', '–']
    """
    fig, ax = get_axes(ax, (6.5, 5))
    values = np.asarray(table, float)
    image = ax.imshow(values, cmap="viridis", aspect="auto")
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for (row, column), value in np.ndenumerate(values):
        text, color = ("–", "black") if np.isnan(value) else (f"{value:.1f}", "white" if value < middle else "black")
        ax.text(column, row, text, ha="center", va="center", color=color, fontsize=8)
    ax.set_yticks(range(len(names[0])), names[0])
    ax.set_xticks(range(len(names[1])), names[1])
    ax.spines[:].set_visible(False)
    fig.colorbar(image, ax=ax, label=labels.pop("label", ""))
    ax.set(**labels)
    return fig, ax
