"""hn Figs. 6 and 7: fluctuation of batch statistics at batch sizes 128 and 4.

    anynorm reproduce hn_fluctuation --preset paper

Paper (sec. 4.6): four layers of 128 neurons with BN and ReLU, and a linear output layer, on MNIST; SGD with learning rate 0.1 at
batch 128 and 0.1 · 4 / 128 at batch 4, 20 epochs. Over the last 200 steps: BN's mean and std of each neuron, EN's of each layer.

    smoke  scikit-learn's digits, one epoch; checks that the code works and claims nothing
    night  the published setting without momentum, pixels standardized to mean 0 and std 1
    paper  the published setting on MNIST's training set, pixels scaled to 0 … 1

Nothing is scaled down. The paper does not say whether SGD had momentum, nor how pixels are scaled. `paper` has momenta 0 and 0.9.
The axes of Fig. 7 fit momentum 0 in layers 3 and 4 (0 … 3 at batch size 4), and standardized inputs in layer 1 (−15 … 15): claims
with momentum 0.9 are ours.
The paper's figure 6 shows the first neuron of each layer; here, fluctuations are means over the 128 neurons of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from anynorm.diagnostics.fluctuation import fluctuation
from anynorm.lab.data.readers import digits, mnist
from anynorm.lab.models.mlp import mlp
from anynorm.lab.recipes.hn.fluctuation.claims import claims, controls
from anynorm.lab.recipes.hn.fluctuation.results import plot, tables
from anynorm.lab.recipes.hn.fluctuation.settings import NUM_LAYERS, STATISTICS, FluctuationSettings
from anynorm.lab.recipes.support.recipe import Recipe
from anynorm.lab.training.sweep import Cell, Measurement, grid

PAPER = FluctuationSettings(seeds=3, data="mnist", epochs=20, last_steps=200, batch_sizes=(128, 4), momenta=(0.0, 0.9))
SMOKE = replace(PAPER, seeds=2, data="digits", epochs=1, last_steps=10, momenta=(0.0,))
NIGHT = replace(PAPER, seeds=5, momenta=(0.0,), standardize=True, min_train_accuracy=90.0)


def cells(settings: FluctuationSettings) -> list[Cell]:
    """Return one cell per batch size, momentum and seed; the long runs, at batch size 4, come last."""
    return grid(settings.seeds, batch_size=settings.batch_sizes, momentum=settings.momenta)


def measure(settings: FluctuationSettings, cell: Cell, _runs: Path) -> Measurement:
    """Train a network and return the fluctuation of each statistic of each layer over the last steps.

    Returns:
        For layer k: "bn_mean k" … "en_std k", the std of each statistic over the steps; "mean_difference k" and
        "std_difference k", the mean distance of BN's statistic from EN's; for seed 0 "series k", the statistics of its first
        neuron; the loss of the last step, and the accuracy on the training set with running statistics.
    """
    images, labels = mnist("train") if settings.data == "mnist" else digits()
    x = images.flatten(1).float() / 255
    if settings.standardize:
        x = (x - x.mean()) / x.std()
    torch.manual_seed(cell["seed"])
    model = mlp(x.shape[1], 10, norms=["bn"] * NUM_LAYERS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * cell["batch_size"] / 128, momentum=cell["momentum"])
    order = torch.cat([torch.randperm(len(x)) for _ in range(settings.epochs)])
    batches = order[: len(order) // cell["batch_size"] * cell["batch_size"]].split(cell["batch_size"])
    num_last = settings.last_steps
    train(model, optimizer, (x, labels), batches[:-num_last])
    with fluctuation(model, num_last) as recorder:
        loss = train(model, optimizer, (x, labels), batches[-num_last:])
    metrics: Measurement = {"loss": loss, "train_accuracy": accuracy(model, x, labels)}
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


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, labels: Tensor) -> float:
    """Return the accuracy of a network with running statistics, in %."""
    model.eval()
    hits = torch.cat([model(part).argmax(1) for part in x.split(1000)]) == labels
    return round(100 * float(hits.float().mean()), 3)


RECIPE = Recipe(
    "hn_fluctuation",
    {"smoke": SMOKE, "night": NIGHT, "paper": PAPER},
    cells,
    measure,
    claims,
    plot,
    tables,
    controls=controls,
)
