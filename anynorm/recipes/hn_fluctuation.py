"""hn Figs. 6 and 7 (sec. 4.6): how much the statistics of batches fluctuate at batch sizes 128 and 4.

    anynorm reproduce hn_fluctuation --preset paper --processes 2        (data: MNIST's training set)

The paper's own setting; `paper` scales nothing down. Four layers of 128 neurons with BN and ReLU, and a linear layer on top; SGD,
learning rate 0.1 at batch 128 and 0.1 · 4 / 128 at batch 4, 20 epochs; BN's mean and std of each neuron and EN's of each layer
over the last 200 steps. The paper does not say whether SGD had momentum: both are measured. Inputs are pixels of 0 to 1.

`smoke` takes scikit-learn's digits and one epoch: it shows that the parts work together, and claims nothing. `paper` took 73
minutes on one core.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import torch
from torch import Tensor, nn

from anynorm import plot
from anynorm.data.readers import digits, mnist
from anynorm.diagnostics.fluctuation import fluctuation
from anynorm.diagnostics.report import DiagnosticReport
from anynorm.models.mlp import mlp
from anynorm.recipes.support.claims import Claim, pick
from anynorm.recipes.support.recipe import Recipe, Settings, grid
from anynorm.recipes.support.record import Record, Row

PAPER: Settings = {"data": "mnist", "epochs": 20, "last": 200, "batch_sizes": [128, 4], "momenta": [0.0, 0.9], "seeds": 3}
SMOKE: Settings = PAPER | {"data": "digits", "epochs": 1, "last": 10, "momenta": [0.0], "seeds": 2}
LAYERS = 4
STAT_PREFIXES = ("bn_mean", "bn_std", "en_mean", "en_std")


def cells(settings: Settings) -> list[Row]:
    """List the runs; the long ones, at batch 4, come last."""
    return grid(settings["seeds"], batch_size=settings["batch_sizes"], momentum=settings["momenta"])


def measure(settings: Settings, cell: Row) -> Row:
    """Train a network; give how much each statistic of each layer fluctuates, and the series of its first neuron."""
    images, labels = mnist("train") if settings["data"] == "mnist" else digits()
    x = images.flatten(1).float() / 255
    torch.manual_seed(cell["seed"])
    model = mlp(x.shape[1], 10, norms=["bn"] * LAYERS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * cell["batch_size"] / 128, momentum=cell["momentum"])
    order = torch.cat([torch.randperm(len(x)) for _ in range(settings["epochs"])])
    steps = order[: len(order) // cell["batch_size"] * cell["batch_size"]].split(cell["batch_size"])
    train(model, optimizer, x, labels, steps[: -settings["last"]])
    with fluctuation(model, settings["last"]) as recorder:
        loss = train(model, optimizer, x, labels, steps[-settings["last"] :])
    found: Row = {"loss": loss}
    for layer, row in enumerate(recorder.report(), 1):
        series = recorder.series(row["path"])
        found |= {f"{name} {layer}": round(row[name], 5) for name in STAT_PREFIXES}
        found[f"mean apart {layer}"] = round(float((series["bn_mean"] - series["en_mean"]).abs().mean()), 5)
        found[f"std apart {layer}"] = round(float((series["bn_std"] - series["en_std"]).abs().mean()), 5)
        if cell["seed"] == 0:
            found[f"series {layer}"] = {name: [round(float(value), 4) for value in series[name][:, 0]] for name in STAT_PREFIXES}
    return found


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, labels: Tensor, steps: tuple[Tensor, ...]) -> float:
    """Do steps of SGD; give the loss of the last."""
    model.train()
    loss = torch.zeros(())
    for chosen in steps:
        loss = nn.functional.cross_entropy(model(x[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return round(float(loss.detach()), 5)


def over_layers(rows: list[Row], name: str, layers: range = range(1, LAYERS + 1), **cell: float) -> list[float]:
    """Give the mean of a number over layers, by seed."""
    columns = [pick(rows, f"{name} {layer}", **cell) for layer in layers]
    return [statistics.fmean(values) for values in zip(*columns, strict=True)]


def claims(settings: Settings) -> list[Claim]:
    """List the paper's four observations, at each batch size; means over the layers."""
    found = []
    for momentum in settings["momenta"]:
        for size in settings["batch_sizes"]:
            cell = {"batch_size": size, "momentum": momentum}
            told = f"batch {size}, momentum {momentum:g}"
            found += [
                _compare(f"1. BN_mean fluctuates more than EN_mean ({told})", "bn_mean", "en_mean", cell),
                _compare(f"1. BN_std fluctuates more than EN_std ({told})", "bn_std", "en_std", cell),
                _compare(f"2. |BN_mean − EN_mean| is larger than |BN_std − EN_std| ({told})", "mean apart", "std apart", cell),
                _compare(f"3. BN_std fluctuates more than BN_mean ({told})", "bn_std", "bn_mean", cell),
                _first(f"4. BN_mean fluctuates more in the first layer than in those after it ({told})", "bn_mean", cell),
                _first(f"4. BN_std fluctuates more in the first layer than in those after it ({told})", "bn_std", cell),
            ]
    return found


def _compare(says: str, larger: str, smaller: str, cell: Row) -> Claim:
    return Claim(
        says,
        "read from Figs. 6, 7",
        lambda rows: over_layers(rows, larger, **cell),
        lambda rows: over_layers(rows, smaller, **cell),
    )


def _first(says: str, name: str, cell: Row) -> Claim:
    first, after = range(1, 2), range(2, LAYERS + 1)
    return Claim(
        says,
        "read from Figs. 6, 7",
        lambda rows: over_layers(rows, name, first, **cell),
        lambda rows: over_layers(rows, name, after, **cell),
    )


def draw(record: Record, path: Path) -> list[Path]:
    """Draw Fig. 6, the fluctuation by layer, and Fig. 7, the series of the first neuron of each layer."""
    from matplotlib.figure import Figure

    sizes, momentum = record.settings["batch_sizes"], record.settings["momenta"][-1]
    fig = Figure(figsize=(3.4 * (LAYERS + 1), 6), layout="constrained")
    for row, size in zip(fig.subplots(len(sizes), LAYERS + 1), sizes, strict=True):
        cell = {"batch_size": size, "momentum": momentum}
        bars = [
            {
                "layer": f"layer {k}",
                **{name: over_layers(record.rows, name, range(k, k + 1), **cell)[0] for name in STAT_PREFIXES},
            }
            for k in range(1, LAYERS + 1)
        ]
        report = DiagnosticReport(bars, "", "fluctuation", "bn_std", {"layer": dict.fromkeys(STAT_PREFIXES)})
        plot.fluctuation(report, row[0])
        row[0].set_title(f"Fig. 6: std of the statistics, batch {size}")
        row[0].legend(frameon=False, loc="upper right")
        for k, ax in enumerate(row[1:], 1):
            found = pick(record.rows, f"series {k}", **cell, seed=0)[0]
            named = {f"neuron {k}-1": {name: torch.tensor(values)[:, None] for name, values in found.items()}}
            plot.series(DiagnosticReport([], "", "fluctuation", "bn_std", named), f"neuron {k}-1", 0, ax)
            ax.set_title(f"Fig. 7: neuron {k}-1, batch {size}")
            ax.get_legend().remove()
    picture = path.with_name(path.name + ".png")
    fig.savefig(picture, dpi=110)
    return [picture]


RECIPE = Recipe("hn_fluctuation", {"smoke": SMOKE, "paper": PAPER}, cells, measure, claims, draw)
