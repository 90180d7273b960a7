"""Pretrained backbones of recipes: classifiers that are trained in the run store before the networks that start from them.

Seeds that start from one backbone are no replications of what depends on it: a comparison of fine-tuned networks needs several
backbones per norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from anynorm.errors import DataError
from anynorm.lab.recipes.support.controls import Requirement
from anynorm.lab.recipes.support.quantities import Measured
from anynorm.lab.recipes.support.runs import last_accuracy, make_config, train_run
from anynorm.lab.recipes.support.settings import Training
from anynorm.lab.training.store import Store

MIN_BACKBONES = 3


class Backbone(NamedTuple):
    """A pretrained classifier: the path of its weights, and its test accuracy in %."""

    weights: str
    accuracy: float | None


def train_backbone(pretraining: Training, norm: str, runs: Path, seed: int | None = None) -> Backbone:
    """Return a classifier that initializes a backbone; train it if it is not stored.

    Args:
        pretraining: how it is trained.
        norm: its norms.
        runs: the folder of the run store.
        seed: its seed; None for that of `pretraining`, so that all seeds start from the same classifier.

    Raises:
        DataError: if the classifier cannot be trained.
    """
    config = pretraining.config if seed is None else replace(pretraining.config, seed=seed)
    config = make_config(replace(config, norm=norm), pretraining)
    record = train_run(config, runs)
    if not record.done:
        raise DataError(f"the classifier with {norm} that networks start from could not be trained: {record.note}.")
    return Backbone(str(Store(runs).folder(config.id) / "model.pt"), last_accuracy(record, "test_error"))


def backbones_requirement(name: str, cell: Mapping[str, Any], seeds: int) -> Requirement:
    """Return the requirement that the networks of a cell start from several backbones.

    Args:
        name: the name of the requirement.
        cell: the cell, without the seed; its rows have "num_backbones".
        seeds: number of seeds of the settings.
    """
    return Requirement(name, Measured(lambda row: row.get("num_backbones"), cell), min(MIN_BACKBONES, seeds))
