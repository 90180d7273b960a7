"""Accuracy of a stored classifier with batch averages in the place of moving averages (sn sec. 2.1, Inference).

Parameters are frozen, training batches of the size of training are fed, and the means and variances of the batches are averaged.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from anynorm.lab.tasks.classification.task import BATCH_AVERAGE, Classification
from anynorm.lab.tasks.run import load_run
from anynorm.lab.training.config import Config
from anynorm.lab.training.items import pack_items
from anynorm.lab.training.sweep import Measurement
from anynorm.lab.training.trainer import Trainer

IMAGENET_SAMPLES = 1_281_167
"""The number of training images of ImageNet, "all" in the paper."""


def averaged_column(num_samples: int) -> str:
    """Return the name of the column of accuracies with statistics averaged over a number of samples."""
    return f"averaged_{num_samples}"


def averaged_accuracies(config: Config, runs: Path, num_samples: tuple[int, ...]) -> Measurement:
    """Return the accuracies in % of a run with batch averages, by `averaged_column`, and their `items`.

    Args:
        config: the configuration of the run, which is in the store.
        runs: the folder of the run store.
        num_samples: numbers of training samples over which statistics are averaged.
    """
    task = load_run(runs, config.id)
    Trainer(replace(config, devices=1), task)  # gives the task its sampler
    assert isinstance(task, Classification)
    task.eval().is_trained = True
    result: Measurement = {"items": {}}
    with torch.no_grad():
        for count in num_samples:
            evaluation, metric = task.evaluate_averaged(count), f"error, {BATCH_AVERAGE}"
            result[averaged_column(count)] = round(100 - evaluation.metrics[metric], 3)
            result["items"][averaged_column(count)] = pack_items(evaluation.items[metric])
    task.close()
    return result
