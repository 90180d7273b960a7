"""Networks that the recipes of xbn train and share, and the estimation shift of a trained network.

    batch_accuracy    test accuracy in % with the statistics of each test batch instead of the running statistics
    esm_std           ESM_σ of each batch norm on test images, in the order of the network (xbn Def. 2)
    shift             the estimation shift of each batch norm in standard deviations, see `anynorm.diagnostics.esm`

The difference of `batch_accuracy` and `accuracy` is what inaccurate running statistics cost a network.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from anynorm.diagnostics.batch_statistics import batch_statistics
from anynorm.lab.recipes.support.presets import BOTTLENECK
from anynorm.lab.recipes.support.runs import make_config, run_metrics, train_run
from anynorm.lab.recipes.support.settings import Training
from anynorm.lab.tasks.run import load_run
from anynorm.lab.training.config import Config
from anynorm.lab.training.items import pack_hits
from anynorm.lab.training.sweep import Measurement

EVAL_BATCH_SIZE = 500
RESNET29, RESNET56, RESNEXT29 = (
    f"anynorm.lab.recipes.xbn.bottleneck_networks:{name}" for name in ("resnet29", "resnet56", "resnext29")
)
NIGHT = Training(
    replace(
        BOTTLENECK.config,
        model=RESNET29,
        num_train=10_000,
        num_test=None,
        epochs=15,
        num_evals=15,
        batch_size=64,
        warmup_epochs=1,
    ),
    base_batch_size=64,
)
"""10 000 images of CIFAR-10 at 16 × 16 pixels, ResNet-29 (9 bottlenecks, last maps of 4 × 4 pixels), 15 epochs = 2340 steps at
batch size 64 and learning rate 0.05, cosine schedule, all test images."""


def measure_trained(config: Config, training: Training, runs: Path) -> Measurement:
    """Train a network and return its accuracies, with running and with batch statistics, and its estimation shift.

    Args:
        config: the configuration of a cell.
        training: how its networks are trained.
        runs: the folder of the run store.
    """
    config = make_config(config, training)
    record = train_run(config, runs)
    metrics = run_metrics(record, training.median_of_last)
    if not record.done:
        return metrics | {"batch_accuracy": None, "esm_std": [], "shift": []}
    layers = [layer for layer in record.shift or () if layer.shift is not None]
    hits = batch_hits(runs, config.id)
    return metrics | {
        "batch_accuracy": round(100 * sum(hits) / len(hits), 3),
        "items": {"batch_accuracy": pack_hits(hits)},
        "esm_std": [round(layer.esm_std or 0.0, 5) for layer in layers],
        "shift": [round(layer.shift or 0.0, 5) for layer in layers],
    }


@torch.no_grad()
def batch_hits(runs: Path, name: str) -> list[bool]:
    """Return which test images a run classifies correctly with the statistics of batches of `EVAL_BATCH_SIZE` of them.

    Args:
        runs: the folder of the run store.
        name: the id of the run.
    """
    task = load_run(runs, name)
    hits: list[bool] = []
    with batch_statistics(task.network):
        for x, labels in task.eval_batches(EVAL_BATCH_SIZE) or ():
            hits += (task.network(x).argmax(1) == labels).tolist()
    task.close()
    return hits
