"""Tasks: what is trained. `anynorm.training.task.Task` is their base class, `anynorm.training.trainer` has the loop.

classification            images and labels; see `anynorm.tasks.classification`
few_shot                  novel classes from a few images; see `anynorm.tasks.few_shot`
generation                images of a class, by a GAN; see `anynorm.tasks.generation`
style_transfer            a decoder for any content and any style; see `anynorm.tasks.style_transfer`
single_style_transfer     Johnson's network for one style; see `anynorm.tasks.single_style_transfer`
package.module:Task       a subclass of `Task`
"""

from __future__ import annotations

import difflib

import torch

from anynorm.errors import DataError
from anynorm.io.checkpoints import import_object
from anynorm.training.config import Config
from anynorm.training.task import Task

TASKS = {
    "classification": "anynorm.tasks.classification:Classification",
    "few_shot": "anynorm.tasks.few_shot:FewShot",
    "generation": "anynorm.tasks.generation:Generation",
    "style_transfer": "anynorm.tasks.style_transfer:StyleTransfer",
    "single_style_transfer": "anynorm.tasks.single_style_transfer:SingleStyleTransfer",
}
"""The class of each task, imported at first use."""


def task_class(name: str) -> type[Task]:
    """Return the class of a task.

    Args:
        name: a key of `TASKS`, or `package.module:Task`.

    Raises:
        DataError: if there is no such task, or it is not a subclass of `Task`.
    """
    if name not in TASKS and ":" not in name:
        close = difflib.get_close_matches(name, TASKS, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise DataError(f"unknown task {name!r}.{hint} Usable: {' '.join(TASKS)} package.module:Task.")
    task = import_object(TASKS.get(name, name))
    if not isinstance(task, type) or not issubclass(task, Task):
        raise DataError(f"{name!r} must be a subclass of anynorm.Task; got {task!r}.")
    return task


def make_task(config: Config) -> Task:
    """Return the task of a run, with untrained networks."""
    task = task_class(config.task)
    torch.manual_seed(config.seed)
    return task(config)
