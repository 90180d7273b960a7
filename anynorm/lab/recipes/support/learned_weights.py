"""Learned mixing weights of SN in rows of a record, layer by layer (sn Figs. 1a and 9)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.support.quantities import Measured, Quantity
from anynorm.lab.recipes.support.rows import save_figure
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.sweep import Cell, Row

CUTS = ("in", "ln", "bn")
WEIGHTS = tuple(f"{side}_{cut}" for side in ("mean", "var") for cut in CUTS)
"""The weights of a layer, in the order of a row: those of the mean, then those of the variance."""
LayerWeights = Mapping[str, Sequence[float]]
MIN_DISTANCE = 0.02
"""Smallest `distance_from_start` from which weights are compared."""


def layer_weights(record: RunRecord) -> dict[str, list[float]] | None:
    """Return the weights of each SN layer by path, in the order of `WEIGHTS`; None if the run failed or has no SN."""
    layers = [layer for layer in record.importance or () if all(name in layer for name in WEIGHTS)]
    if not record.done or not layers:
        return None
    return {layer["path"]: [round(layer[name], 4) for name in WEIGHTS] for layer in layers}


def mean_weight(row: Row, cut: str, prefix: str = "") -> float | None:
    """Return the weight of a cut, the mean over mean and variance and over the layers whose path starts with `prefix`.

    Args:
        row: a row with "weights" of `layer_weights`.
        cut: one of `CUTS`.
        prefix: start of the paths, such as "heads.box".

    >>> mean_weight({"weights": {"heads.box.0": [0.2, 0.5, 0.3, 0.4, 0.1, 0.5]}}, "bn", "heads.box")
    0.4
    """
    weights: LayerWeights = row["weights"] or {}
    index = CUTS.index(cut)
    values = [(each[index] + each[index + len(CUTS)]) / 2 for path, each in weights.items() if path.startswith(prefix)]
    return statistics.fmean(values) if values else None


def weight_of(cut: str, prefix: str = "", **cell: Any) -> Measured:
    """Return the mean weight of a cut in the layers of a cell whose path starts with `prefix`."""
    return Measured(lambda row: mean_weight(row, cut, prefix), cell)


def distance_from_start(**cell: Any) -> Measured:
    """Return the mean absolute difference of the weights of a cell from 1/3, where training starts.

    At the start no cut is selected: an order of weights means something only if training has moved them.
    """
    return Measured(_distance_from_start, cell)


def _distance_from_start(row: Row) -> float | None:
    weights: LayerWeights = row.get("weights") or {}
    return statistics.fmean(abs(value - 1 / len(CUTS)) for each in weights.values() for value in each) if weights else None


@dataclass(frozen=True)
class WeightDistance(Quantity):
    """The mean absolute difference of the weights of two networks, over the layers that both have.

    Args:
        first: the cell of a network, without the seed.
        second: the cell of the other one.
        next_seed: whether the second network has the next seed instead of the same one; the last seed is followed by the first.
    """

    first: Mapping[str, Any]
    second: Mapping[str, Any]
    next_seed: bool = False

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Both cells."""
        return (dict(self.first), dict(self.second))

    def at(self, rows: Sequence[Row], seed: int) -> float | None:
        """Return the distance for a seed; None if a run failed."""
        seeds = sorted(self.seeds(rows) or ())
        other = seeds[(seeds.index(seed) + 1) % len(seeds)] if self.next_seed else seed
        networks = [_weights(rows, {**self.first, "seed": seed}), _weights(rows, {**self.second, "seed": other})]
        common = networks[0].keys() & networks[1].keys()
        pairs = [pair for path in common for pair in zip(networks[0][path], networks[1][path], strict=True)]
        return statistics.fmean(abs(a - b) for a, b in pairs) if pairs else None


def _weights(rows: Sequence[Row], cell: Cell) -> LayerWeights:
    """Return the weights of the run of a cell; none if it failed."""
    found: list[LayerWeights | None] = [row.get("weights") for row in rows if cell.items() <= row.items()]
    return found[0] or {} if found else {}


def draw_layer_weights(rows: Mapping[str, Sequence[Row]], path: Path) -> list[Path]:
    """Plot the weights of each layer, means over seeds, for the mean and the variance (sn Figs. 7 and 9).

    Args:
        rows: rows with "weights" of networks with the same layers, by the title of their panels.
        path: the path without the extension.
    """
    known = {title: [row["weights"] for row in each if row.get("weights")] for title, each in rows.items()}
    known = {title: each for title, each in known.items() if each}
    if not known:
        return []
    fig = Figure(figsize=(10, 2.4 * len(known)), layout="constrained")
    axes = fig.subplots(len(known), 2, squeeze=False, sharey=True)
    for panels, (title, networks) in zip(axes, known.items(), strict=True):
        for side, ax in enumerate(panels):
            layers = list(networks[0])
            bottom = [0.0] * len(layers)
            for k, cut in enumerate(CUTS):
                heights = [statistics.fmean(each[layer][side * len(CUTS) + k] for each in networks) for layer in layers]
                ax.bar(range(1, len(layers) + 1), heights, bottom=bottom, color=draw.COLORS[k], label=cut.upper(), width=0.9)
                bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
            ax.xaxis.get_major_locator().set_params(integer=True)
            ax.set(xlabel="SN layer", ylim=(0, 1), title=f"{title}: {'μ' if side == 0 else 'σ²'}")
        panels[0].set_ylabel("mixing weight")
    axes[0][1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return save_figure(fig, path.with_name(f"{path.name}.weights"))
