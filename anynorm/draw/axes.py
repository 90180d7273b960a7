"""Axes, colors, ticks and legends of all plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anynorm.errors import DataError

COLORS = ("#1f5fa8", "#d9692b", "#3a8f5c", "#8a4f9e", "#b8942b", "#6b6b6b")
FigureAndAxes = tuple[Any, Any]


def get_axes(ax: Any, size: tuple[float, float] = (7, 4)) -> FigureAndAxes:
    """Return (fig, ax) of the given axes, or of a new figure of `size` inches if ax is None.

    Raises:
        DataError: if matplotlib is not installed.

    >>> fig, ax = get_axes(None, (5, 3))
    >>> get_axes(ax) == (fig, ax)
    True
    """
    if ax is not None:
        return ax.figure, ax
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DataError("Plots need matplotlib: pip install 'anynorm[lab]'.") from None
    fig = Figure(figsize=size, layout="constrained")
    ax = fig.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    return fig, ax


def cycle_colors(count: int) -> list[str]:
    """Return `count` colors; the colors repeat if `count` is larger than the number of colors.

    >>> cycle_colors(7)[6] == COLORS[0]
    True
    """
    return [COLORS[k % len(COLORS)] for k in range(count)]


def wide_size(num_bars: float) -> tuple[float, float]:
    """Return a figure size in inches that fits this many labeled bars."""
    return min(20.0, max(7.0, 0.3 * num_bars + 1.5)), 4.5


def set_names(ax: Any, names: Sequence[str], label: str) -> None:
    """Set the tick labels of an x axis of bars to their names (a subset if there are many), and set its label."""
    step = max(1, len(names) // 60)
    ax.set_xticks(np.arange(0, len(names), step), names[::step], rotation=90 if len(names) > 6 else 0, fontsize=8)
    ax.set_xlim(-0.6, len(names) - 0.4)
    ax.set_xlabel(label)


def set_legend_above(ax: Any, labels: Sequence[str] | None = None) -> None:
    """Place the legend above the bars, and extend the y axis to make room for it."""
    handles, defaults = ax.get_legend_handles_labels()
    bottom, top = ax.get_ylim()
    ax.set_ylim(bottom, top + 0.1 * len(handles) * (top - bottom))
    ax.legend(handles, labels or defaults, frameon=False, loc="upper left")
