"""Tables and plots of `hn_fluctuation`."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import torch
from matplotlib.figure import Figure

from anynorm import draw
from anynorm.diagnostics.report import DiagnosticReport
from anynorm.lab.recipes.hn.fluctuation.claims import conditions
from anynorm.lab.recipes.hn.fluctuation.settings import LAYERS, NUM_LAYERS, STATISTICS, FluctuationSettings
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, result_table, save_figure, select, successful
from anynorm.lab.training.sweep import Cell
from anynorm.table import Table


def tables(record: RecipeRecord[FluctuationSettings]) -> list[Table]:
    """Return the fluctuation of each statistic by layer, one table per momentum and batch size."""
    return [
        result_table(
            [
                {"layer": f"layer {layer}"}
                | {name: result_over_seeds(record.rows, f"{name} {layer}", **cell) for name in STATISTICS}
                for layer in LAYERS
            ],
            f"Std of each statistic over the last {record.settings.last_steps} steps, mean over neurons "
            f"(batch {cell['batch_size']}, momentum {cell['momentum']:g}).",
            ".3f",
        )
        for cell in conditions(record.settings)
    ]


def plot(record: RecipeRecord[FluctuationSettings], path: Path) -> list[Path]:
    """Plot Figs. 6 and 7 for each momentum, without momentum first."""
    pictures: list[Path] = []
    for momentum in sorted(record.settings.momenta):
        suffix = f".momentum_{momentum:g}" if pictures else ""
        pictures += save_figure(_draw(record, momentum), path.with_name(path.name + suffix), dpi=110)
    return pictures


def _draw(record: RecipeRecord[FluctuationSettings], momentum: float) -> Figure:
    """Return Fig. 6 (fluctuation by layer) and Fig. 7 (statistics of the first neuron of each layer over the last steps)."""
    sizes = record.settings.batch_sizes
    fig = Figure(figsize=(3.4 * (NUM_LAYERS + 1), 6), layout="constrained")
    fig.suptitle(f"momentum {momentum:g}, inputs {'standardized' if record.settings.standardize else 'from 0 to 1'}")
    for axes, size in zip(fig.subplots(len(sizes), NUM_LAYERS + 1), sizes, strict=True):
        cell: Cell = {"batch_size": size, "momentum": momentum}
        bars = [
            {"layer": f"layer {k}"} | {name: fmean(successful(record.rows, f"{name} {k}", **cell)) for name in STATISTICS}
            for k in LAYERS
        ]
        draw.fluctuation(DiagnosticReport(bars, "", "fluctuation", "bn_std", {"layer": dict.fromkeys(STATISTICS)}), axes[0])
        axes[0].set_title(f"Fig. 6: std of the statistics, batch {size}")
        axes[0].legend(frameon=False, loc="upper right")
        for k, ax in zip(LAYERS, axes[1:], strict=True):
            (values,) = select(record.rows, f"series {k}", **cell, seed=0)
            series = {f"neuron {k}-1": {name: torch.tensor(steps)[:, None] for name, steps in values.items()}}
            draw.series(DiagnosticReport([], "", "fluctuation", "bn_std", series), f"neuron {k}-1", 0, ax)
            ax.set_title(f"Fig. 7: neuron {k}-1, batch {size}")
            ax.get_legend().remove()
    return fig
