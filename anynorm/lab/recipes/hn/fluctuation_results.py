"""Controls, claims, tables and plots of `hn_fluctuation`.

The paper's four observations (sec. 4.6), for each layer:

    1. BN's mean and std fluctuate more than EN's. For the mean this is a theorem: EN's mean is the average of BN's over neurons,
       and the std of an average is at most the average of the stds. For the std it is nearly one: EN's variance averages those of
       the neurons, and adds the variance between their means, which fluctuates little.
    2. |BN_mean − EN_mean| is larger than |BN_std − EN_std|.
    3. BN's std fluctuates more than its mean.
    4. Statistics fluctuate more in the first layer than in each later one.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

import torch
from matplotlib.figure import Figure

from anynorm import draw
from anynorm.diagnostics.report import DiagnosticReport
from anynorm.lab.recipes.hn.fluctuation_settings import FluctuationSettings
from anynorm.lab.recipes.support.claims import RATIO, Check, Claim, Larger, Level, Source
from anynorm.lab.recipes.support.controls import Control, Requirement
from anynorm.lab.recipes.support.quantities import Computed, Measured
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, result_table, save_figure, select, successful
from anynorm.lab.training.sweep import Cell
from anynorm.table import Table

NUM_LAYERS = 4
LAYERS = range(1, NUM_LAYERS + 1)
STATISTICS = ("bn_mean", "bn_std", "en_mean", "en_std")
PANELS = {128: "aceg", 4: "bdfh"}
"""The parts of Fig. 7 by batch size, one per layer."""
LEAST_PROBABILITY = 60.0
"""Probability in % of the right class in the last step with which a network has learned; chance is 10."""


def _cells(settings: FluctuationSettings) -> list[Cell]:
    return [{"batch_size": size, "momentum": momentum} for momentum in settings.momenta for size in settings.batch_sizes]


def _condition(cell: Cell) -> str:
    return f"batch {cell['batch_size']}, momentum {cell['momentum']:g}"


def _learned(cell: Cell) -> str:
    """Return the name of the control of a cell."""
    return f"probability of the right class (%), {_condition(cell)}"


def controls(settings: FluctuationSettings) -> list[Control]:
    """Return one control per cell: the network has learned, according to the loss of its last step."""
    return [
        Requirement(_learned(cell), Computed(lambda loss: 100 * math.exp(-loss), [Measured("loss", cell)]), LEAST_PROBABILITY)
        for cell in _cells(settings)
    ]


def claims(settings: FluctuationSettings) -> list[Claim | Check]:
    """Return the four observations, layer by layer, for each momentum and batch size."""
    return [claim for cell in _cells(settings) for claim in _observations(cell)]


def _observations(cell: Cell) -> list[Claim | Check]:
    def ratio(statement: str, layer: int, names: tuple[str, str], place: str, quote: str = "") -> Larger:
        return Larger(
            statement=f"{statement} in layer {layer} ({_condition(cell)})",
            source=Source("hn", place, quote),
            larger=Measured(f"{names[0]} {layer}", cell),
            smaller=Measured(f"{names[1]} {layer}", cell),
            scale=RATIO,
            level=Level.LAYER,
            group=f"hn {place.rstrip('abcdefgh')}, {statement} ({_condition(cell)})",
            requires=(_learned(cell),),
        )

    result: list[Claim | Check] = [
        Check(
            statement=f"1. BN_mean fluctuates at least as much as EN_mean in layer {layer} ({_condition(cell)})",
            reason="EN's mean is the average of BN's: the std of an average is at most the average of the stds",
            larger=Measured(f"bn_mean {layer}", cell),
            smaller=Measured(f"en_mean {layer}", cell),
        )
        for layer in LAYERS
    ]
    for layer in LAYERS:
        part = f"Fig. 7{PANELS[cell['batch_size']][layer - 1]}"
        result += [
            ratio("1. BN_std fluctuates more than EN_std", layer, ("bn_std", "en_std"), "Fig. 6"),
            ratio(
                "2. |BN_mean − EN_mean| is larger than |BN_std − EN_std|",
                layer,
                ("mean_difference", "std_difference"),
                part,
                "obvious in Fig. 7(a), 7(e), 7(g)",
            ),
            ratio("3. BN_std fluctuates more than BN_mean", layer, ("bn_std", "bn_mean"), "Fig. 6", "and Fig. 7(d), 7(f), 7(h)"),
        ]
    return result + [_first_layer(cell, name, later) for name in ("mean", "std") for later in LAYERS[1:]]


def _first_layer(cell: Cell, name: str, later: int) -> Larger:
    """Return the claim that a statistic of BN fluctuates more in the first layer than in a later one."""
    statement = f"4. BN_{name} fluctuates more in layer 1"
    return Larger(
        statement=f"{statement} than in layer {later} ({_condition(cell)})",
        source=Source("hn", "Fig. 6", "statistics in the first layer have more significant fluctuations than following layers"),
        larger=Measured(f"bn_{name} 1", cell),
        smaller=Measured(f"bn_{name} {later}", cell),
        scale=RATIO,
        level=Level.LAYER,
        group=f"hn Fig. 6, {statement} than later ({_condition(cell)})",
        requires=(_learned(cell),),
    )


def tables(record: RecipeRecord[FluctuationSettings]) -> list[Table]:
    """Return the fluctuation of each statistic by layer, one table per momentum and batch size."""
    return [
        result_table(
            [
                {"layer": f"layer {layer}"}
                | {name: result_over_seeds(record.rows, f"{name} {layer}", **cell) for name in STATISTICS}
                for layer in LAYERS
            ],
            f"Std of each statistic over the last {record.settings.last_steps} steps, mean over neurons ({_condition(cell)}).",
            ".3f",
        )
        for cell in _cells(record.settings)
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
