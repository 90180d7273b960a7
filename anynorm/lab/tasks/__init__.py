"""Tasks: networks, data, losses and metrics of experiments.

`anynorm.lab.training.task.Task` is their base class; `anynorm.lab.training.trainer` has the training loop.
The first line of its docstring says what a task does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anynorm.errors import DataError, unknown_name

if TYPE_CHECKING:
    from anynorm.lab.training.config import Config
    from anynorm.lab.training.task import Task

TASKS = {
    "classification": "anynorm.lab.tasks.classification.task:Classification",
    "adversarial": "anynorm.lab.tasks.adversarial.task:Adversarial",
    "advprop": "anynorm.lab.tasks.adversarial.advprop:AdvProp",
    "architecture_evaluation": "anynorm.lab.tasks.search.evaluation_task:ArchitectureEvaluation",
    "few_shot": "anynorm.lab.tasks.few_shot.task:FewShot",
    "generation": "anynorm.lab.tasks.generation.task:Generation",
    "style_transfer": "anynorm.lab.tasks.style.task:StyleTransfer",
    "single_style_transfer": "anynorm.lab.tasks.style.single_style:SingleStyleTransfer",
    "darts": "anynorm.lab.tasks.search.darts:FirstOrderSearch",
    "darts_second_order": "anynorm.lab.tasks.search.darts:SecondOrderSearch",
    "manas_exp3": "anynorm.lab.tasks.search.manas:Exp3Search",
    "manas_least_squares": "anynorm.lab.tasks.search.manas:LeastSquaresSearch",
    "random_search": "anynorm.lab.tasks.search.manas:RandomArchitectureSearch",
    "controller_search": "anynorm.lab.tasks.search.controller_task:ControllerSearch",
    "source_only": "anynorm.lab.tasks.adaptation.task:SourceOnly",
    "adabn": "anynorm.lab.tasks.adaptation.task:AdaBN",
    "dsbn": "anynorm.lab.tasks.adaptation.loops:DSBN",
    "can": "anynorm.lab.tasks.adaptation.can:CAN",
    "can_all_classes": "anynorm.lab.tasks.adaptation.can:CANAllClasses",
    "detection": "anynorm.lab.tasks.detection.task:Detection",
    "segmentation": "anynorm.lab.tasks.segmentation.task:Segmentation",
    "video": "anynorm.lab.tasks.video.task:VideoClassification",
}
"""The class of each task, imported at first use: the help of the command line has these names without importing torch."""


def task_class(name: str) -> type[Task]:
    """Return the class of a task.

    Args:
        name: a key of `TASKS`, or `package.module:Task`.

    Raises:
        DataError: if the task is unknown, or not a subclass of `Task`.
    """
    from anynorm.io.checkpoints import import_object
    from anynorm.lab.training.task import Task

    if name not in TASKS and ":" not in name:
        raise DataError(unknown_name("task", name, TASKS, "package.module:Task"))
    task = import_object(TASKS.get(name, name))
    if not isinstance(task, type) or not issubclass(task, Task):
        raise DataError(f"{name!r} must be a subclass of anynorm.Task; got {task!r}.")
    return task


def make_task(config: Config) -> Task:
    """Return the task of a run, with untrained networks."""
    import torch

    task = task_class(config.task)
    torch.manual_seed(config.seed)
    return task(config)
