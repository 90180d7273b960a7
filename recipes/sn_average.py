"""sn Fig. 5: the statistics that SN infers with: moving average against batch average.

    anynorm reproduce sn_average --preset desk        (data: CIFAR-10)

The paper trains ResNet-50 on ImageNet, and compares BN (moving average) with SN by moving and by batch average: parameters
frozen, a number of training batches fed, the statistics of each averaged. `desk` scales that down to `anynorm.lab.trained.DESK`,
after one epoch and after three, at batch 32 and 2; 50 batches are averaged (`anynorm.recalibrate`: `averaged` and `pooled`).

`paper` is sn's setting (data: a folder `imagenet` with `train` and `test`, all of it in memory). `smoke` claims nothing.
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn

import anynorm
from anynorm import plot
from anynorm.lab.claims import Claim, pick, spread
from anynorm.lab.data import DataSet
from anynorm.lab.engine import Training
from anynorm.lab.recipe import Recipe, Settings, grid
from anynorm.lab.record import Record, Row
from anynorm.lab.run import load_run
from anynorm.lab.trained import DESK, IMAGENET, SMOKE, config_of, numbers, root, saved, trained
from anynorm.report import Rows

PRESETS: dict[str, Settings] = {
    "smoke": SMOKE | {"batch_sizes": [32], "epochs": [1], "batches": 2},
    "desk": DESK | {"batch_sizes": [32, 2], "epochs": [1, 3], "batches": 50},
    "paper": IMAGENET
    | {"per": 256, "batch_sizes": [32], "epochs": [10, 100], "batches": 1000,
       "train": IMAGENET["train"] | {"schedule": "step-30-60-90"}},
}  # fmt: skip
NORMS = ("bn", "sn")
ESTIMATORS = ("averaged", "pooled")
SHOWN = (("bn", "accuracy", "BN"), ("sn", "accuracy", "SN, moving"), ("sn", "averaged", "SN, batch average"))


def cells(settings: Settings) -> list[Row]:
    """List the runs."""
    return grid(settings["seeds"], norm=NORMS, batch_size=settings["batch_sizes"], epochs=settings["epochs"])


def measure(settings: Settings, cell: Row) -> Row:
    """Train a network; give its accuracy by moving average, and by each estimator of the batch average."""
    config = config_of(settings, **cell)
    found = numbers(trained(config))
    for estimator in ESTIMATORS:
        found[estimator] = None
        if not found["failed"]:
            model, data = load_run(root(), config.id)
            training = Training(config, data)
            batches = [training.batch(step, 0)[0] for step in range(min(settings["batches"], training.steps))]
            anynorm.recalibrate(model, batches, estimator=estimator)
            found[estimator] = round(accuracy(model, training.data), 3)
    return found


@torch.no_grad()
def accuracy(model: nn.Module, data: DataSet) -> float:
    """Give the accuracy in percent on the test set."""
    right = [model(x).argmax(1) == truth for x, truth in data.tests(500)]
    return 100 * float(torch.cat(right).double().mean())


def claims(settings: Settings) -> list[Claim]:
    """List what the figure shows."""
    found = []
    for size in settings["batch_sizes"]:
        for epochs in settings["epochs"]:
            where = {"batch_size": size, "epochs": epochs}
            words = f"(batch {size}, {epochs} epochs)"
            average, moving, plain = (
                _column(column, norm, where) for column, norm in (("averaged", "sn"), ("accuracy", "sn"), ("accuracy", "bn"))
            )
            papers = "76.92 and 76.89 at the end" if epochs == max(settings["epochs"]) else "the batch average is ahead early on"
            found.append(Claim(f"SN by batch average is more accurate than by moving average {words}", papers, average, moving))
            found.append(Claim(f"SN by batch average is more accurate than BN {words}", "76.92 and 76.4", average, plain))
    return found


def _column(column: str, norm: str, where: Row):  # type: ignore[no-untyped-def]
    return lambda rows: pick(rows, column, norm=norm, **where)


def tables(record: Record) -> list[Rows]:
    """Give accuracies by norm, batch size, length of training and estimator."""
    rows = []
    for size in record.settings["batch_sizes"]:
        for epochs in record.settings["epochs"]:
            for norm in NORMS:
                cell = {"norm": norm, "batch_size": size, "epochs": epochs}
                moving, averaged, pooled = (spread(pick(record.rows, name, **cell)) for name in ("accuracy", *ESTIMATORS))
                line = {"norm": norm, "batch": size, "epochs": epochs}
                rows.append(line | {"moving": moving, "batch average": averaged, "pooled": pooled})
    return [Rows(rows, "Test accuracy in %, mean ± sd over seeds.")]


def draw(record: Record, path: Path) -> list[Path]:
    """Draw accuracies by estimator after each length of training."""
    sizes = record.settings["batch_sizes"]
    fig = Figure(figsize=(5.5 * len(sizes), 4), layout="constrained")
    for ax, size in zip(fig.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        things = {}
        for norm, column, label in SHOWN:
            by_epochs = {n: pick(record.rows, column, norm=norm, batch_size=size, epochs=n) for n in record.settings["epochs"]}
            things[label] = {n: [value for value in found if value is not None] for n, found in by_epochs.items()}
        plot.lines(things, ax, xlabel="epochs of training", ylabel="test accuracy (%)", title=f"sn Fig. 5, batch {size}")
    return saved(fig, path)


RECIPE = Recipe("sn_average", PRESETS, cells, measure, claims, draw, tables)
