"""The learning curves of a record: test error against epochs, means over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from anynorm.lab.recipes.support.rows import save_figure
from anynorm.lab.training.sweep import Row

MAX_LINES = 24
"""Records with more cells than this get several panels."""


def curve_plot(rows: Sequence[Row], keys: Sequence[str], title: str, path: Path) -> list[Path]:
    """Draw test errors (lines) and training errors (dashed) of each cell and write the picture as PNG.

    Args:
        rows: the rows of a record; those without a curve are left out.
        keys: the keys of a cell, without the seed.
        title: title of the figure.
        path: path without the extension.

    Returns:
        The path of the picture in a list; empty if no row has a curve of at least two points.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        curve: list[Any] = row.get("curve") or []
        if len(curve) > 1 and isinstance(curve[0], Sequence):  # other recipes have curves of another metric
            groups.setdefault(", ".join(str(row[key]) for key in keys), []).append(row)
    if not groups:
        return []
    names = list(groups)
    panels = [names[start : start + MAX_LINES // 3] for start in range(0, len(names), MAX_LINES // 3)]
    columns = min(3, len(panels))
    num_rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.4 * num_rows), layout="constrained")
    axes = figure.subplots(num_rows, columns, squeeze=False, sharey=True).flat
    for ax, panel in zip(axes, panels, strict=False):
        for index, name in enumerate(panel):
            epochs = [point[0] for point in groups[name][0]["curve"]]
            for part, style in ((2, "-"), (1, "--")):
                runs = [[point[part] for point in row["curve"]] for row in groups[name]]
                means = [_mean(values) for values in zip(*runs, strict=False)]
                label = name if part == 2 else None
                ax.plot(epochs[: len(means)], means, style, color=f"C{index}", linewidth=1.2, label=label)
        ax.set_xlabel("epoch")
        ax.legend(fontsize=7, frameon=False)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in list(figure.axes)[len(panels) :]:
        ax.set_visible(False)
    figure.axes[0].set_ylabel("error (%): test —, training - -")
    figure.suptitle(title)
    return save_figure(figure, path, dpi=110)


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else float("nan")
