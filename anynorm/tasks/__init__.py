"""Tasks: what is trained. A task has the samples, the loss and the metrics; `anynorm.training.trainer` has the loop."""

from __future__ import annotations

from anynorm.data import ImageDataset, load_dataset
from anynorm.tasks.classification import Classification
from anynorm.training.config import Config
from anynorm.training.task import Task


def make_task(config: Config, data: ImageDataset | None = None) -> Task:
    """Return the task of a run.

    Args:
        config: the run.
        data: the data set of `config.data`, if it is already loaded.
    """
    return Classification(config, data or load_dataset(config.data, config.image_size))
