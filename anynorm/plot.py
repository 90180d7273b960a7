"""Pictures of reports: each takes a report and an `ax`, makes one where there is none, and returns (fig, ax).

    profiles    a column of one or several reports over the layers, in the order they run
    series      a statistic of some neurons over the last steps of training
    heat        a table of numbers, such as layers × iterations
    curves      a score against the size of a perturbation, for one or several models
    lines       numbers with their spread against a size, for one or several things
    grid        a table of numbers, written out and coloured

and one for each question, under the name that its report has in `what`. The only place that imports matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anynorm.diagnostics.report import Report
from anynorm.errors import DataError, DiagnosticError

COLOURS = ("#1f5fa8", "#d9692b", "#3a8f5c", "#8a4f9e", "#b8942b", "#6b6b6b")
Drawn = tuple[Any, Any]


def draw(report: Report, path: Path | str) -> None:
    """Write the picture of a report; the ending of the path says in which format."""
    check_picture(path)
    fig, _ = PICTURES[report.what](report)
    fig.savefig(path, dpi=150)


def check_picture(path: Path | str) -> None:
    """Refuse a path that no picture can be written to."""
    path = Path(path)
    fig, _ = _axes(None)
    known = fig.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in known:
        raise DataError(f"{path} has no ending of a picture. Known: {' '.join(known)}.")
    if not path.absolute().parent.is_dir():
        raise DataError(f"There is no folder {path.parent} to draw {path.name} in.")


def _axes(ax: Any, size: tuple[float, float] = (7, 4)) -> Drawn:
    if ax is not None:
        return ax.figure, ax
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DataError("Pictures need matplotlib: pip install 'anynorm[lab]'.") from None
    fig = Figure(figsize=size, layout="constrained")
    ax = fig.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    return fig, ax


def estimation_shift(report: Report, ax: Any = None) -> Drawn:
    """Draw the shift of each norm in deviations, and the output error it causes alone."""
    rows = [row for row in report if "shift" in row]
    fig, ax = _axes(ax, _wide(len(rows)))
    places = np.arange(len(rows))
    ax.bar(places, [row["shift"] for row in rows], color=COLOURS[0], label="shift (0 is right; 1 is a deviation, or a factor e)")
    if all("output_error" in row for row in rows):
        errors = [row["output_error"] for row in rows]
        ax.plot(places, errors, "o", color=COLOURS[1], label="change of the output when this norm alone is put right (relative)")
    _name(ax, [row["path"] for row in rows])
    ax.set(ylabel="estimation shift", title="Where kept statistics are wrong")
    _legend_above(ax)
    return fig, ax


def profiles(reports: Mapping[str, Sequence[Mapping[str, Any]]], column: str = "esm_std", ax: Any = None) -> Drawn:
    """Draw a column of several reports, or rows, over the layers; a row may say its `layer`, else they are counted from 1."""
    fig, ax = _axes(ax)
    for (label, rows), colour in zip(reports.items(), _colours(len(reports)), strict=True):
        measured = [row for row in rows if column in row]
        layers = [row.get("layer", place) for place, row in enumerate(measured, 1)]
        ax.plot(layers, [row[column] for row in measured], "o-", color=colour, label=label, markersize=4)
    words = {"esm_mean": r"$\mathrm{ESM}_\mu$", "esm_std": r"$\mathrm{ESM}_\sigma$"}
    ax.set(xlabel="layer", ylabel=words.get(column, column))
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.legend(frameon=False)
    return fig, ax


def fluctuation(report: Report, ax: Any = None) -> Drawn:
    """Draw how much each statistic fluctuates in each norm."""
    rows = [row for row in report if "note" not in row]
    columns = list(next(iter(report.details.values())))
    return _bars(rows, columns, ax, title="Fluctuation of batch statistics", ylabel="std over the last steps")


def gradient_balance(report: Report, ax: Any = None) -> Drawn:
    """Draw, stage by stage, how unequal and how alike the gradients of classes are."""
    fig, ax = _bars(report.rows, ["relative_std", "g_inter"], ax, title="Balance of class gradients", ylabel="lower is better")
    words = ["spread of norms over classes (relative)", r"$g_\mathrm{inter}$ (mean cosine)"]
    _legend_above(ax, words)
    return fig, ax


def _bars(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], ax: Any, **words: str) -> Drawn:
    fig, ax = _axes(ax, _wide(len(rows) * len(columns) / 2))
    width = 0.8 / len(columns)
    for k, (column, colour) in enumerate(zip(columns, _colours(len(columns)), strict=True)):
        places = np.arange(len(rows)) + (k - (len(columns) - 1) / 2) * width
        ax.bar(places, [row[column] for row in rows], width, color=colour, label=column.replace("_", " "))
    _name(ax, [next(iter(row.values())) for row in rows])
    ax.set(**words)
    _legend_above(ax)
    return fig, ax


def importance(report: Report, ax: Any = None) -> Drawn:
    """Draw the weights of mixed norms as stacked bars, for each norm its mean and, hatched, its variance (sn Fig. 7)."""
    fig, ax = _axes(ax, _wide(len(report) * 1.5))
    cuts = list(dict.fromkeys(column.partition("_")[2] for column in report.details["means"]))
    for side, place, hatch in (("mean", -0.21, ""), ("var", 0.21, "//")):
        bottom = np.zeros(len(report))
        for cut, colour in zip(cuts, _colours(len(cuts)), strict=True):
            shares = np.array([row.get(f"{side}_{cut}", 0.0) for row in report])
            label = cut if side == ("mean" if any(f"mean_{cut}" in row for row in report) else "var") else None
            places = np.arange(len(report)) + place
            ax.bar(places, shares, 0.4, bottom, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4, label=label)
            bottom += shares
    _name(ax, [row["path"] for row in report])
    ax.set(ylabel="weight", ylim=(0, 1), title="What mixed norms use: mean (left) and variance (right, hatched)")
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return fig, ax


def series(report: Report, path: str, part: int = 0, ax: Any = None) -> Drawn:
    """Draw the statistics of one neuron over the last steps of training (hn Fig. 7)."""
    if path not in report.details:
        raise DiagnosticError(f"The report has no series of '{path}'. It has: {' '.join(report.details)}.")
    fig, ax = _axes(ax)
    found = report.details[path]
    parts = max(steps.shape[1] for steps in found.values())
    if not 0 <= part < parts:
        raise DiagnosticError(f"'{path}' has no neuron {part}; it has 0 to {parts - 1}.")
    for (name, steps), colour in zip(found.items(), _colours(len(found)), strict=True):
        ax.plot(
            np.arange(1, len(steps) + 1),
            steps[:, min(part, steps.shape[1] - 1)],
            color=colour,
            lw=1,
            label=name.replace("_", " "),
        )
    ax.set(xlabel="step", ylabel="value of the statistic", title=f"Neuron {part} of {path}")
    ax.legend(frameon=False)
    return fig, ax


def heat(table: Any, ax: Any = None, **words: str) -> Drawn:
    """Draw a table as colours, its first row at the bottom."""
    fig, ax = _axes(ax)
    image = ax.imshow(np.asarray(table), aspect="auto", origin="lower", cmap="viridis", interpolation="nearest")
    fig.colorbar(image, ax=ax, label=words.pop("label", ""))
    ax.set(**words)
    return fig, ax


def perturbation(report: Report, ax: Any = None) -> Drawn:
    """Draw the score of a model against the size of the perturbation."""
    fig, ax = curves({"model": report.rows}, ax)
    ax.get_legend().remove()
    ax.set_title(f"Statistics perturbed per {report.details['per']}, mean and sd over draws")
    return fig, ax


def curves(models: Mapping[str, Sequence[Mapping[str, Any]]], ax: Any = None) -> Drawn:
    """Draw the scores of several models against the size of the perturbation, with the spread over draws (xbn Fig. 8)."""
    fig, ax = _axes(ax)
    for (label, rows), colour in zip(models.items(), _colours(len(models)), strict=True):
        deltas, scores, spread = (np.array([row[column] for row in rows]) for column in ("delta", "score", "sd"))
        ax.plot(deltas, scores, "o-", color=colour, label=label, markersize=4)
        ax.fill_between(deltas, scores - spread, scores + spread, color=colour, alpha=0.15, linewidth=0)
    ax.set(xlabel="noise magnitude Δ", ylabel="score")
    ax.legend(frameon=False)
    return fig, ax


def lines(things: Mapping[str, Mapping[Any, Sequence[float]]], ax: Any = None, **words: str) -> Drawn:
    """Draw the mean and sd of numbers at each size, for several things; sizes are equally far apart."""
    fig, ax = _axes(ax)
    sizes = list(dict.fromkeys(size for by_size in things.values() for size in by_size))
    styles = [(colour, line) for line in ("-", "--") for colour in COLOURS]
    drawn = {label: by_size for label, by_size in things.items() if any(by_size.values())}
    for k, (label, by_size) in enumerate(drawn.items()):
        there = [size for size in sizes if by_size.get(size)]
        means = [float(np.mean(by_size[size])) for size in there]
        spread = [float(np.std(by_size[size], ddof=1)) if len(by_size[size]) > 1 else 0.0 for size in there]
        places = [sizes.index(size) + 0.02 * (k - len(drawn) / 2) for size in there]
        colour, line = styles[k % len(styles)]
        ax.errorbar(places, means, spread, fmt="o", ls=line, color=colour, label=label, markersize=4, capsize=2, lw=1.2)
    ax.set_xticks(range(len(sizes)), [f"{size:g}" if isinstance(size, int | float) else str(size) for size in sizes])
    ax.set(**words)
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return fig, ax


def grid(table: Any, names: tuple[Sequence[str], Sequence[str]], ax: Any = None, **words: str) -> Drawn:
    """Draw a table with its numbers written in; `names` are those of the rows and the columns, and NaN is a dash."""
    fig, ax = _axes(ax, (6.5, 5))
    values = np.asarray(table, float)
    image = ax.imshow(values, cmap="viridis", aspect="auto")
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for (row, column), value in np.ndenumerate(values):
        text, colour = ("–", "black") if np.isnan(value) else (f"{value:.1f}", "white" if value < middle else "black")
        ax.text(column, row, text, ha="center", va="center", color=colour, fontsize=8)
    ax.set_yticks(range(len(names[0])), names[0])
    ax.set_xticks(range(len(names[1])), names[1])
    ax.spines[:].set_visible(False)
    fig.colorbar(image, ax=ax, label=words.pop("label", ""))
    ax.set(**words)
    return fig, ax


def _legend_above(ax: Any, words: Sequence[str] | None = None) -> None:
    """Put the legend over the bars, in room made for it."""
    handles, labels = ax.get_legend_handles_labels()
    bottom, top = ax.get_ylim()
    ax.set_ylim(bottom, top + 0.1 * len(handles) * (top - bottom))
    ax.legend(handles, words or labels, frameon=False, loc="upper left")


def _wide(places: float) -> tuple[float, float]:
    return min(20.0, max(7.0, 0.3 * places + 1.5)), 4.5


def _name(ax: Any, names: Sequence[str]) -> None:
    """Name the places of an axis; of many, only as many as can be read."""
    step = max(1, len(names) // 60)
    ax.set_xticks(np.arange(0, len(names), step), names[::step], rotation=90 if len(names) > 6 else 0, fontsize=8)
    ax.set_xlim(-0.6, len(names) - 0.4)


def _colours(count: int) -> list[str]:
    return [COLOURS[k % len(COLOURS)] for k in range(count)]


PICTURES = {
    "estimation_shift": estimation_shift,
    "fluctuation": fluctuation,
    "gradient_balance": gradient_balance,
    "importance": importance,
    "perturbation": perturbation,
}
