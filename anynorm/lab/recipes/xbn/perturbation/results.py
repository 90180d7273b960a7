"""Quantities, tables and plots of the recipe `xbn_perturbation`."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from anynorm import draw
from anynorm.diagnostics.perturb import PER
from anynorm.lab.recipes.support.computed_column import ComputedColumn
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, result_table, save_figure, select
from anynorm.lab.recipes.xbn.perturbation.settings import PerturbationSettings
from anynorm.lab.training.items import unpack_items
from anynorm.lab.training.result import Result
from anynorm.lab.training.sweep import Row
from anynorm.table import Table

MAX_DELTA = 0.75
"""Claims average over the magnitudes up to this one: at 1, a variance is multiplied by almost 0."""


def label_of(norm: str) -> str:
    """Return the name of a network in the paper.

    >>> label_of("gn:64"), label_of("in.none"), label_of("bn")
    ('XBN_GN', 'XBN_IN', 'BN')
    """
    return "BN" if norm == "bn" else f"XBN_{norm[:2].upper()}"


def accuracy_loss(per: str, **cell: Any) -> ComputedColumn:
    """Return the points of accuracy lost, averaged over draws and over Δ up to `MAX_DELTA`."""

    def loss(row: Row) -> float | None:
        points = [point for point in row[per] or () if 0 < point["delta"] <= MAX_DELTA]
        return row["accuracy"] - statistics.fmean(point["score"] for point in points) if points else None

    def items(row: Row) -> NDArray[np.float64] | None:
        packed = row.get("items", {}).get(per)
        return None if packed is None else unpack_items(packed)

    return ComputedColumn(loss, cell, items=items)


def tables(record: RecipeRecord[PerturbationSettings]) -> list[Table]:
    """Return the unperturbed accuracy of each network and the points that it loses."""
    rows = []
    for position in record.settings.positions:
        for norm in record.settings.norms:
            cell = {"norm": norm, "position": position}
            lost = {
                f"lost per {per}": Result.of([accuracy_loss(per, **cell).at(record.rows, row["seed"]) for row in record.rows
                                              if cell.items() <= row.items()])
                for per in PER
            }  # fmt: skip
            accuracy = result_over_seeds(record.rows, "accuracy", **cell)
            rows.append({"network": label_of(norm), "perturbed norm": position, "unperturbed": accuracy, **lost})
    finding = f"Accuracy in % without noise, and points lost (mean over draws and Δ up to {MAX_DELTA}); mean ± sd over networks."
    return [result_table(rows, finding)]


def plot(record: RecipeRecord[PerturbationSettings], path: Path) -> list[Path]:
    """Plot accuracy against Δ for each perturbed norm, per layer and per channel; means over networks and draws."""
    positions, norms = record.settings.positions, record.settings.norms
    fig = Figure(figsize=(11, 1 + 3.25 * len(positions)), layout="constrained")
    axes = fig.subplots(len(positions), len(PER), sharey=True, squeeze=False)
    for axes_row, position in zip(axes, positions, strict=True):
        for ax, per in zip(axes_row, PER, strict=True):
            curves = {label_of(norm): _mean_curve(select(record.rows, per, norm=norm, position=position)) for norm in norms}
            draw.curves(curves, ax)
            title = f"{position} norm of {record.settings.num_blocks} blocks, one δ per {per}"
            ax.set(ylabel="accuracy (%)", ylim=(0, 100), title=title)
    return save_figure(fig, path, dpi=110)


def _mean_curve(curves: list[list[Row] | None]) -> list[Row]:
    """Return the curve of all draws of all networks."""
    result = []
    for points in zip(*(curve for curve in curves if curve), strict=True):
        scores = [score for point in points for score in point["scores"]]
        result.append({"delta": points[0]["delta"], "score": statistics.fmean(scores), "sd": statistics.pstdev(scores)})
    return result
