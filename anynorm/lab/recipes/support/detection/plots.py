"""Tables and plots of recipes of detection."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.support.detection.settings import DetectionSettings
from anynorm.lab.recipes.support.learned_weights import CUTS, mean_weight
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, save_figure, select, successful
from anynorm.lab.training.sweep import Row


def metrics_row(record: RecipeRecord[DetectionSettings], norm: str, columns: dict[str, str]) -> Row:
    """Return metrics of a detector by title: results over seeds, "–" for a metric that the detector does not have.

    Metrics that the record does not have are left out.

    Args:
        record: the record of the recipe.
        norm: the name of the detector.
        columns: the columns of the rows, by title.
    """
    rows = [row for row in record.rows if row["norm"] == norm]
    has_failed = any(row["failure"] for row in rows)
    recorded = {title: column for title, column in columns.items() if all(column in row for row in record.rows)}
    return {
        title: result_over_seeds(record.rows, column, norm=norm)
        if has_failed or None not in select(record.rows, column, norm=norm)
        else "–"
        for title, column in recorded.items()
    }


MODES = {"ap": "running statistics", "ap_recalibrated": "recalibrated", "ap_batch_statistics": "batch statistics"}
"""The label in plots of each column: the statistics that the norms use in evaluation."""


def draw_modes(record: RecipeRecord[DetectionSettings], path: Path, titles: dict[str, str], shifts: dict[str, str]) -> list[Path]:
    """Plot the AP of variants with running, recalibrated and batch statistics, and their estimation shift by layer.

    Args:
        record: the record of the recipe.
        path: the path without the extension.
        titles: the label of each variant in the plot of AP.
        shifts: the label of each variant in the plot of estimation shift.
    """
    fig = Figure(figsize=(12, 4.2), layout="constrained")
    bars, layers = fig.subplots(1, 2, width_ratios=(1.5, 1))
    for index, norm in enumerate(titles):
        modes = [column for column in MODES if successful(record.rows, column, norm=norm)]
        for k, column in enumerate(modes):
            values = successful(record.rows, column, norm=norm)
            position = index + 0.26 * (k - (len(modes) - 1) / 2)
            color = draw.COLORS[list(MODES).index(column)]
            bars.bar(position, sum(values) / len(values), 0.24, color=color, alpha=0.85)
            bars.plot([position] * len(values), values, ".", color="black", ms=4)
    for k, label in enumerate(MODES.values()):
        bars.bar(0, 0, color=draw.COLORS[k], label=label, alpha=0.85)
    bars.set_xticks(range(len(titles)), list(titles.values()))
    bars.set(ylabel="box AP (%)", title="AP on test images, mean and every seed")
    bars.set_ylim(0, 1.25 * bars.get_ylim()[1])
    bars.legend(frameon=False, loc="upper center", ncols=3)
    for (norm, label), color in zip(shifts.items(), draw.COLORS, strict=False):
        rows = [row["shift"] for row in record.rows if row["norm"] == norm and row["shift"]]
        if rows:
            means = [sum(values) / len(values) for values in zip(*rows, strict=True)]
            layers.plot(range(1, len(means) + 1), means, "o-", ms=3, color=color, label=label)
    layers.set(xlabel="norm with running statistics, from first to last", ylabel="estimation shift", ylim=(0, None))
    layers.set_title("Estimation shift by layer, mean over seeds")
    layers.set_ylim(0, 1.25 * layers.get_ylim()[1])
    layers.legend(frameon=False, loc="upper center", ncols=3 if len(shifts) < 4 else 2)
    return save_figure(fig, path)


def draw_curves(record: RecipeRecord[DetectionSettings], path: Path, panels: dict[str, list[str]]) -> list[Path]:
    """Plot the test AP of detectors during training, mean over seeds (sn Fig. 8); no file if the record has no curves.

    Args:
        record: the record of the recipe.
        path: the path without the extension.
        panels: the detectors of each panel, by its title.
    """
    panels = {title: norms for title, norms in panels.items() if norms}
    if not panels or not all(len(row.get("curve", ())) > 1 for row in record.rows if not row["failure"]):
        return []
    fig = Figure(figsize=(5.5 * len(panels), 4), layout="constrained")
    for ax, (title, norms) in zip(fig.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for norm, color in zip(norms, draw.COLORS, strict=False):
            curves = [row["curve"] for row in record.rows if row["norm"] == norm and not row["failure"]]
            points = list(zip(*curves, strict=True))
            means = [sum(point["ap"] for point in each) / len(each) for each in points]
            ax.plot([each[0]["step"] for each in points], means, "o-", ms=3, color=color, label=norm)
        ax.set(xlabel="step", ylabel="box AP (%)", title=title)
        ax.legend(frameon=False)
    return save_figure(fig, path.with_name(f"{path.name}.curves"))


def draw_weights(record: RecipeRecord[DetectionSettings], path: Path, norm: str, parts: dict[str, str]) -> list[Path]:
    """Plot the mixing weights of SN by part of a detector, mean and every seed (sn Fig. 1a); no file without weights.

    Args:
        record: the record of the recipe.
        path: the path without the extension.
        norm: the detector.
        parts: the prefix of the paths of the layers of each part, by its label.
    """
    rows = [row for row in record.rows if row["norm"] == norm and row.get("weights")]
    if not rows:
        return []
    fig = Figure(figsize=(6, 4), layout="constrained")
    ax = fig.subplots()
    for k, cut in enumerate(CUTS):
        for position, prefix in enumerate(parts.values()):
            values = [value for row in rows if (value := mean_weight(row, cut, prefix)) is not None]
            center = position + 0.27 * (k - 1)
            if values:
                label = cut.upper() if position == 0 else None
                ax.bar(center, sum(values) / len(values), 0.25, color=draw.COLORS[k], alpha=0.85, label=label)
                ax.plot([center] * len(values), values, ".", color="black", ms=4)
    ax.axhline(1 / len(CUTS), color="gray", lw=0.8)
    ax.set_xticks(range(len(parts)), list(parts))
    ax.set(ylabel="mixing weight, mean of μ and σ²", title=f"Mixing weights of SN by part, {norm}")
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return save_figure(fig, path.with_name(f"{path.name}.weights"))
