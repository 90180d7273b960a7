"""The forest plot of a record: each claim's difference with its 95 % interval, and the paper's difference."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from anynorm.lab.recipes.support.claims import RATIO, Scale
from anynorm.lab.recipes.support.rows import save_figure
from anynorm.lab.recipes.support.verdicts import EQUIVALENT, FAILED, HOLDS, NOT_FAIR, REVERSED, SMALLER, UNDECIDED, Verdict

COLORS = {
    HOLDS: "#2a7f4f",
    REVERSED: "#b2342d",
    EQUIVALENT: "#2c5f9e",
    SMALLER: "#7a5aa6",
    UNDECIDED: "#8a8a8a",
    NOT_FAIR: "#cfcfcf",
    FAILED: "#cfcfcf",
}
EQUAL = "#e9eef5"
"""The color of ± δ, in which a difference is called equal."""
ROW_HEIGHT, WIDTH, TEXT_WIDTH = 0.3, 11.0, 78


def forest_plot(verdicts: Sequence[Verdict], title: str, path: Path) -> list[Path]:
    """Draw the claims that could be estimated, one panel per unit, and write the picture as PNG. Unfair tests are light grey.

    Args:
        verdicts: the verdicts of a record.
        title: title of the figure.
        path: path without the extension.

    Returns:
        The path of the picture in a list; empty if no claim could be estimated.
    """
    panels: dict[Scale, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.estimate is not None:
            panels.setdefault(verdict.claim.scale, []).append(verdict)
    if not panels:
        return []
    sizes = [len(rows) for rows in panels.values()]
    height = ROW_HEIGHT * sum(sizes) + 1.1 * len(panels) + 0.6
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=[size + 2 for size in sizes])[:, 0]
    for ax, (scale, rows) in zip(axes, panels.items(), strict=True):
        draw_forest(rows, scale, ax)
    shown = {verdict.verdict for rows in panels.values() for verdict in rows}
    handles: list[Any] = [
        axes[0].plot([], [], "o", color=color, label=name)[0] for name, color in COLORS.items() if name in shown
    ]
    if any(verdict.claim.margin is not None for rows in panels.values() for verdict in rows):
        handles.append(axes[0].plot([], [], "D", color="black", fillstyle="none", label="paper")[0])
    if any(verdict.claim.transformed_delta is not None for rows in panels.values() for verdict in rows):
        handles.append(Patch(color=EQUAL, label="± δ: called equal"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.suptitle(title)
    return save_figure(figure, path, dpi=110)


def draw_forest(verdicts: Sequence[Verdict], scale: Scale, ax: Axes) -> Axes:
    """Draw differences in one unit with ± δ and the paper's differences, the first claim on top."""
    for position, verdict in enumerate(verdicts):
        if verdict.estimate is None:
            continue
        y, color = len(verdicts) - position, COLORS[verdict.verdict]
        if (delta := verdict.claim.transformed_delta) is not None:
            low, high = scale.inverse(-delta), scale.inverse(delta)
            ax.fill_betweenx([y - 0.36, y + 0.36], low, high, color=EQUAL, linewidth=0, zorder=0)
        low, high = (scale.inverse(limit) for limit in verdict.estimate.interval())
        ax.plot([low, high], [y, y], color=color, linewidth=2, solid_capstyle="butt")
        ax.plot(scale.inverse(verdict.estimate.difference), y, "o", color=color)
        if verdict.claim.margin is not None:
            ax.plot(scale.inverse(verdict.claim.margin), y, "D", color="black", fillstyle="none")
    ax.axvline(scale.inverse(0.0), color="black", linewidth=0.8)
    labels = [textwrap.shorten(verdict.claim.statement.replace("`", ""), TEXT_WIDTH, placeholder=" …") for verdict in verdicts]
    ax.set_yticks(range(len(verdicts), 0, -1), labels, fontsize=8)
    ax.set_ylim(0.3, len(verdicts) + 0.7)
    if scale is RATIO:
        ax.set_xscale("log")
        ax.set_xlabel("first side / second side, 95 % interval")
    else:
        ax.set_xlabel(f"first side − second side{f' ({scale.unit})' if scale.unit else ''}, 95 % interval")
    ax.spines[["top", "right"]].set_visible(False)
    return ax
