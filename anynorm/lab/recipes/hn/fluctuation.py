"""hn Figs. 6 and 7: fluctuation of batch statistics at batch sizes 128 and 4.

    anynorm reproduce hn_fluctuation --preset paper

Paper (sec. 4.6): four layers of 128 neurons with BN and ReLU, and a linear output layer, on MNIST; SGD with learning rate 0.1 at
batch 128 and 0.1 · 4 / 128 at batch 4, 20 epochs. Over the last 200 steps: BN's mean and std of each neuron, EN's of each layer.

    smoke  scikit-learn's digits, one epoch; checks that the code works and claims nothing
    paper  the published setting on MNIST's training set

Nothing is scaled down in `paper`. The paper does not say whether SGD had momentum, so both 0 and 0.9 are measured. Pixels are
scaled to 0 … 1.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from anynorm import draw
from anynorm.diagnostics.fluctuation import fluctuation
from anynorm.diagnostics.report import DiagnosticReport
from anynorm.lab.data.readers import digits, mnist
from anynorm.lab.models.mlp import mlp
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import Values, save_figure, select
from anynorm.lab.recipes.support.settings import Settings
from anynorm.lab.training.sweep import Cell, Measurement, Row, grid


@dataclass(frozen=True, kw_only=True)
class FluctuationSettings(Settings):
    """Settings of the fluctuation of batch statistics.

    Args:
        data: "mnist" or "digits".
        epochs: number of epochs.
        last_steps: number of last steps over which the fluctuation is measured.
        batch_sizes: batch sizes.
        momenta: momenta of SGD.
    """

    data: str
    epochs: int
    last_steps: int
    batch_sizes: tuple[int, ...]
    momenta: tuple[float, ...]


PAPER = FluctuationSettings(seeds=3, data="mnist", epochs=20, last_steps=200, batch_sizes=(128, 4), momenta=(0.0, 0.9))
SMOKE = replace(PAPER, seeds=2, data="digits", epochs=1, last_steps=10, momenta=(0.0,))
NUM_LAYERS = 4
LAYERS = range(1, NUM_LAYERS + 1)
STATISTICS = ("bn_mean", "bn_std", "en_mean", "en_std")


def cells(settings: FluctuationSettings) -> list[Cell]:
    """Return one cell per batch size, momentum and seed; the long runs, at batch size 4, come last."""
    return grid(settings.seeds, batch_size=settings.batch_sizes, momentum=settings.momenta)


def measure(settings: FluctuationSettings, cell: Cell, _runs: Path) -> Measurement:
    """Train a network and return the fluctuation of each statistic of each layer over the last steps.

    Returns:
        For layer k: "bn_mean k" … "en_std k", the std of each statistic over the steps; "mean_difference k" and
        "std_difference k", the mean distance of BN's statistic from EN's; for seed 0 "series k", the statistics of its first
        neuron.
    """
    images, labels = mnist("train") if settings.data == "mnist" else digits()
    x = images.flatten(1).float() / 255
    torch.manual_seed(cell["seed"])
    model = mlp(x.shape[1], 10, norms=["bn"] * NUM_LAYERS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * cell["batch_size"] / 128, momentum=cell["momentum"])
    order = torch.cat([torch.randperm(len(x)) for _ in range(settings.epochs)])
    batches = order[: len(order) // cell["batch_size"] * cell["batch_size"]].split(cell["batch_size"])
    num_last = settings.last_steps
    train(model, optimizer, (x, labels), batches[:-num_last])
    with fluctuation(model, num_last) as recorder:
        loss = train(model, optimizer, (x, labels), batches[-num_last:])
    metrics: Measurement = {"loss": loss}
    for layer, row in enumerate(recorder.report(), 1):
        series = recorder.series(row["path"])
        metrics |= {f"{name} {layer}": round(row[name], 5) for name in STATISTICS}
        for statistic in ("mean", "std"):
            difference = (series[f"bn_{statistic}"] - series[f"en_{statistic}"]).abs().mean()
            metrics[f"{statistic}_difference {layer}"] = round(float(difference), 5)
        if cell["seed"] == 0:
            metrics[f"series {layer}"] = {name: [round(float(value), 4) for value in series[name][:, 0]] for name in STATISTICS}
    return metrics


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: tuple[Tensor, Tensor], batches: Sequence[Tensor]) -> float:
    """Do one step of SGD per batch and return the loss of the last step.

    Args:
        model: the network.
        optimizer: the optimizer of its parameters.
        data: inputs and labels.
        batches: the indices of each batch.
    """
    x, labels = data
    model.train()
    loss = torch.zeros(())
    for indices in batches:
        loss = nn.functional.cross_entropy(model(x[indices]), labels[indices])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return round(float(loss.detach()), 5)


def layer_mean(metric: str, cell: Cell, layers: Sequence[int] = LAYERS) -> Values:
    """Return a function that averages a metric of a cell over layers, for each seed."""

    def average(rows: list[Row]) -> list[float]:
        by_layer = [select(rows, f"{metric} {layer}", **cell) for layer in layers]
        return [statistics.fmean(values) for values in zip(*by_layer, strict=True)]

    return average


def claims(settings: FluctuationSettings) -> list[Claim]:
    """Return the paper's four observations (means over the layers) for each momentum and batch size."""
    result = []
    for momentum in settings.momenta:
        for size in settings.batch_sizes:
            cell = {"batch_size": size, "momentum": momentum}
            first, later = LAYERS[:1], LAYERS[1:]
            observations = {
                "1. BN_mean fluctuates more than EN_mean": [layer_mean("bn_mean", cell), layer_mean("en_mean", cell)],
                "1. BN_std fluctuates more than EN_std": [layer_mean("bn_std", cell), layer_mean("en_std", cell)],
                "2. |BN_mean − EN_mean| is larger than |BN_std − EN_std|": [
                    layer_mean("mean_difference", cell),
                    layer_mean("std_difference", cell),
                ],
                "3. BN_std fluctuates more than BN_mean": [layer_mean("bn_std", cell), layer_mean("bn_mean", cell)],
            }
            for name in ("mean", "std"):
                statement = f"4. BN_{name} fluctuates more in the first layer than in the later layers"
                observations[statement] = [layer_mean(f"bn_{name}", cell, layers) for layers in (first, later)]
            for statement, (larger, smaller) in observations.items():
                condition = f"batch {size}, momentum {momentum:g}"
                result.append(Claim(f"{statement} ({condition})", "read from Figs. 6, 7", larger, smaller))
    return result


def plot(record: RecipeRecord[FluctuationSettings], path: Path) -> list[Path]:
    """Plot Fig. 6 (fluctuation by layer) and Fig. 7 (statistics of the first neuron of each layer over the last steps)."""
    sizes, momentum = record.settings.batch_sizes, record.settings.momenta[-1]
    fig = Figure(figsize=(3.4 * (NUM_LAYERS + 1), 6), layout="constrained")
    for axes, size in zip(fig.subplots(len(sizes), NUM_LAYERS + 1), sizes, strict=True):
        cell = {"batch_size": size, "momentum": momentum}
        bars: list[dict[str, Any]] = [
            {"layer": f"layer {k}", **{name: layer_mean(name, cell, [k])(record.rows)[0] for name in STATISTICS}} for k in LAYERS
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
    return save_figure(fig, path, dpi=110)


RECIPE = Recipe("hn_fluctuation", {"smoke": SMOKE, "paper": PAPER}, cells, measure, claims, plot)
