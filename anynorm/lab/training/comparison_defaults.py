"""Defaults of `anynorm compare`, which a task can override: norms, batch sizes and settings."""

from __future__ import annotations

from dataclasses import dataclass

from anynorm.lab.training.config import Config


@dataclass(frozen=True)
class ComparisonDefaults:
    """The defaults of a comparison of a task.

    Args:
        norms: norm specs, or layouts of several specs.
        batch_sizes: numbers of samples per batch.
        lr_scaling: how the learning rate is scaled with the batch size: linear, sqrt or none.
        base: the settings of all runs except task, norm, batch size and seed; `base.lr` is the learning rate at batch size 32.
    """

    norms: tuple[str, ...] = ("bn", "gn:8", "sn", "hn", "bgn")
    batch_sizes: tuple[int, ...] = (2, 32)
    lr_scaling: str = "linear"
    base: Config = Config(model="resnet10", epochs=2, lr=0.05)
