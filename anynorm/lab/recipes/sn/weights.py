"""SN's importance weights in the rows of recipes: by layer, by stage, and averaged over all layers.

A row has `layers`: the weights of each norm by its path in the network, such as {"4.0.bn2": {"mean_in": 0.2, …, "var_bn": 0.4}}.
The first part of a path in a residual network of `anynorm.lab.models` is the stage, 0 for the stem; the second part is the block.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable
from typing import Any

from anynorm import draw
from anynorm.lab.recipes.support.controls import Requirement
from anynorm.lab.recipes.support.quantities import Computed, Quantity
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.sweep import Measurement, Row

STATISTICS = {"mean": "mean", "var": "variance"}
CUTS = ("in", "ln", "bn")
WEIGHTS = [f"{statistic}_{cut}" for statistic in STATISTICS for cut in CUTS]
MIN_MOVE = 0.05
"""Smallest difference of a weight from equal weights at which SN is said to have a preference."""
MOVED = "largest difference of a weight from equal weights"

Layers = dict[str, dict[str, float]]


def weight_metrics(record: RunRecord) -> Measurement:
    """Return the weights of a run for a row: their means over the layers, `mean_in` and so on, and `layers`.

    Weights of cuts that the norms do not have, or of a failed run, are None.
    """
    layers: Layers = {
        layer["path"]: {name: round(layer[name], 4) for name in WEIGHTS if name in layer} for layer in record.importance or ()
    }
    return average_weights(layers) | {"layers": layers}


def average_weights(layers: Layers) -> dict[str, float | None]:
    """Return each weight, averaged over the layers that have it; None if no layer has."""
    values = {name: [layer[name] for layer in layers.values() if name in layer] for name in WEIGHTS}
    return {name: round(statistics.fmean(each), 4) if each else None for name, each in values.items()}


def stage_of(path: str) -> int:
    """Return the stage of a norm.

    >>> stage_of("4.0.bn2")
    4
    """
    return int(path.partition(".")[0])


def stage_weight(names: Iterable[str], *, last: bool) -> Callable[[Row], float | None]:
    """Return a function of a row: the mean of weights over the layers of the last stage, or of the first after the stem."""

    def mean(row: Row) -> float | None:
        stages = sorted({stage_of(path) for path in row["layers"]} - {0})
        if not stages:
            return None
        stage = stages[-1] if last else stages[0]
        layers = {path: layer for path, layer in row["layers"].items() if stage_of(path) == stage}
        average = average_weights(layers)
        values = [average[name] for name in names]
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if known else None

    return mean


def adjacent_distance(row: Row) -> float | None:
    """Return how much adjacent layers of a block differ: total variation distance of their weights, mean over pairs.

    It is between 0 (equal weights) and 1 (no cut in common), averaged over the weights of the mean and of the variance.
    """
    blocks: dict[str, list[dict[str, float]]] = {}
    for path, layer in row["layers"].items():
        blocks.setdefault(".".join(path.split(".")[:2]), []).append(layer)
    pairs = [pair for layers in blocks.values() for pair in itertools.pairwise(layers)]
    distances = [sum(abs(a[name] - b[name]) for name in a) / 4 for a, b in pairs]
    return statistics.fmean(distances) if distances else None


def statistics_distance(row: Row) -> float | None:
    """Return how much the weights of mean and variance of a layer differ: total variation distance, mean over the layers."""
    distances = [
        sum(abs(layer[f"mean_{cut}"] - layer[f"var_{cut}"]) for cut in CUTS if f"mean_{cut}" in layer) / 2
        for layer in row["layers"].values()
    ]
    return statistics.fmean(distances) if distances else None


def moved(weights: list[Quantity], equal: float, *, at_least: float = MIN_MOVE) -> Requirement:
    """Return the requirement that a weight differs from equal weights, so that SN can be said to prefer a cut.

    Args:
        weights: the weights.
        equal: the weight at the start of training, 1 / number of cuts.
        at_least: smallest difference.
    """
    difference = Computed(lambda *values: max(abs(value - equal) for value in values), weights)
    return Requirement(MOVED, difference, at_least)


def draw_layers(ax: Any, layers: Layers, statistic: str, title: str) -> None:
    """Draw the weights of each layer as stacked bars, in the order of the network, with lines between stages (Fig. 7)."""
    bottom = [0.0] * len(layers)
    for cut, color in zip(CUTS, draw.COLORS, strict=False):
        heights = [layer.get(f"{statistic}_{cut}", 0.0) for layer in layers.values()]
        ax.bar(range(len(layers)), heights, 0.9, bottom, color=color, label=cut.upper())
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    stages = [stage_of(path) for path in layers]
    for position in range(1, len(stages)):
        if stages[position] != stages[position - 1]:
            ax.axvline(position - 0.5, color="black", lw=0.8)
    ax.set(xlabel="layer", ylabel="weight", title=title, xlim=(-0.5, max(len(layers), 1) - 0.5), ylim=(0, 1))
