"""sn Fig. 5: the statistics that SN infers with: moving average against batch average.

    anynorm reproduce sn_average --preset desk        (data: CIFAR-10)

The paper trains ResNet-50 on ImageNet, and compares BN (moving average) with SN by moving and by batch average: parameters
frozen, a number of training batches fed, the statistics of each averaged. `desk` scales that down to `anynorm.recipes.support.presets.DESK`,
after the first epoch and after the third and last, at batch 32 and 2; 50 batches are averaged (`anynorm.recalibrate`: `averaged`
and `pooled`).

`paper` is sn's setting as far as the lab has it: see `anynorm.recipes.support.presets.IMAGENET` (data: a folder `imagenet` with `train` and
`test`). `smoke` claims nothing. `desk` took 5 minutes on two cores.
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn

import anynorm
from anynorm import plot
from anynorm.data import ImageDataset
from anynorm.recipes.support.claims import Claim, pick, spread
from anynorm.recipes.support.presets import DESK, IMAGENET_100, SMOKE, column, config_of, numbers, root, saved, trained
from anynorm.recipes.support.recipe import Recipe, Settings, grid
from anynorm.recipes.support.record import Record, Row
from anynorm.table import Table
from anynorm.training.run import load_run
from anynorm.training.trainer import Trainer

PRESETS: dict[str, Settings] = {
    "smoke": SMOKE | {"batch_sizes": [32], "after": [1], "batches": 2},
    "desk": DESK | {"batch_sizes": [32, 2], "after": [1, 3], "batches": 50},
    "paper": IMAGENET_100 | {"batch_sizes": [32], "after": [1, 10, 30, 60, 90, 100], "batches": 200},
}
NORMS = ("bn", "sn")
ESTIMATORS = ("averaged", "pooled")
SHOWN = (("bn", "accuracy", "BN"), ("sn", "accuracy", "SN, moving"), ("sn", "averaged", "SN, batch average"))


def cells(settings: Settings) -> list[Row]:
    """List the runs."""
    return grid(settings["seeds"], norm=NORMS, batch_size=settings["batch_sizes"], after=settings["after"])


def measure(settings: Settings, cell: Row) -> Row:
    """Train a network; give its accuracy by moving average, and by each estimator of the batch average."""
    after = cell["after"]
    until = after if after < settings["train"]["epochs"] else None  # the whole run is one that others want too
    config = config_of(settings, cell["norm"], cell["batch_size"], cell["seed"], stop_epoch=until)
    found = numbers(trained(config)) | dict.fromkeys(ESTIMATORS)
    if not found["failed"]:
        model, data = load_run(root(), config.id)
        training = Trainer(config, data)
        for estimator in ESTIMATORS:
            batches = (training.batch(step, 0)[0] for step in range(min(settings["batches"], training.end)))
            anynorm.recalibrate(model, batches, estimator=estimator)
            found[estimator] = round(accuracy(model, training.data), 3)
    return found


@torch.no_grad()
def accuracy(model: nn.Module, data: ImageDataset) -> float:
    """Give the accuracy in percent on the test set."""
    right = [model(x).argmax(1) == truth for x, truth in data.test_batches(500)]
    return 100 * float(torch.cat(right).double().mean())


def claims(settings: Settings) -> list[Claim]:
    """List what the figure shows."""
    found = []
    for size in settings["batch_sizes"]:
        for after in settings["after"]:
            where = {"batch_size": size, "after": after}
            words = f"(batch {size}, after epoch {after})"
            average, moving, plain = (
                column(name, norm=norm, **where) for name, norm in (("averaged", "sn"), ("accuracy", "sn"), ("accuracy", "bn"))
            )
            says, end = "SN by batch average is more accurate than", after == max(settings["after"])
            paper = "76.92 and 76.89 at the end, batch 32" if end else "the batch average is ahead early on"
            found.append(Claim(f"{says} by moving average {words}", paper, average, moving))
            found.append(Claim(f"{says} BN {words}", "76.92 and 76.4 at the end, batch 32", average, plain))
    return found


def tables(record: Record) -> list[Table]:
    """Give accuracies by norm, batch size, epoch and estimator."""
    rows = []
    for size in record.settings["batch_sizes"]:
        for after in record.settings["after"]:
            for norm in NORMS:
                cell = {"norm": norm, "batch_size": size, "after": after}
                moving, averaged, pooled = (spread(pick(record.rows, name, **cell)) for name in ("accuracy", *ESTIMATORS))
                line = {"norm": norm, "batch": size, "after epoch": after}
                rows.append(line | {"moving": moving, "batch average": averaged, "pooled": pooled})
    return [Table(rows, "Test accuracy in %, mean ± sd over seeds.")]


def draw(record: Record, path: Path) -> list[Path]:
    """Draw accuracies by estimator over the training."""
    sizes = record.settings["batch_sizes"]
    fig = Figure(figsize=(5.5 * len(sizes), 4), layout="constrained")
    for ax, size in zip(fig.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        things = {}
        for norm, name, label in SHOWN:
            by_epoch = {n: pick(record.rows, name, norm=norm, batch_size=size, after=n) for n in record.settings["after"]}
            things[label] = {n: [value for value in found if value is not None] for n, found in by_epoch.items()}
        plot.lines(things, ax, xlabel="after epoch", ylabel="test accuracy (%)", title=f"sn Fig. 5, batch {size}")
    return saved(fig, path)


RECIPE = Recipe("sn_average", PRESETS, cells, measure, claims, draw, tables)
