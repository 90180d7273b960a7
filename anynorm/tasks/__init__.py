"""Tasks: networks, data, losses and metrics of experiments.

`anynorm.training.task.Task` is their base class; `anynorm.training.trainer` has the training loop.

classification            images and labels; see `anynorm.tasks.classification`
adversarial               classification, trained on adversarial images; see `anynorm.tasks.adversarial`
advprop                   classification, trained on clean and adversarial images; see `anynorm.tasks.advprop`
architecture_evaluation   the same with a searched network of the DARTS space; see `anynorm.tasks.architecture_evaluation`
few_shot                  novel classes from a few images; see `anynorm.tasks.few_shot`
generation                images of a class, by a GAN; see `anynorm.tasks.generation`
style_transfer            a decoder for any content and any style; see `anynorm.tasks.style_transfer`
single_style_transfer     Johnson's network for one style; see `anynorm.tasks.single_style_transfer`
darts                     architecture search, first order; see `anynorm.tasks.darts`
darts_second_order        the same through an unrolled step of the weights
manas_exp3                the same by bandits; see `anynorm.tasks.manas`
manas_least_squares
random_search
controller_search         the controller of ENAS on tables of NAS-Bench-201; see `anynorm.tasks.controller_search`
source_only adabn dsbn    domain adaptation: baselines; see `anynorm.tasks.domain_adaptation`
can can_all_classes       domain adaptation: CAN, with two readings of its loss; see `anynorm.tasks.contrastive_adaptation`
detection                 objects with boxes or masks; see `anynorm.tasks.detection`
segmentation              a class per pixel; see `anynorm.tasks.segmentation`
video                     classification of videos by inflated networks; see `anynorm.tasks.video`
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
    "adversarial": "anynorm.tasks.adversarial:Adversarial",
    "advprop": "anynorm.tasks.advprop:AdvProp",
    "architecture_evaluation": "anynorm.tasks.architecture_evaluation:ArchitectureEvaluation",
    "few_shot": "anynorm.tasks.few_shot:FewShot",
    "generation": "anynorm.tasks.generation:Generation",
    "style_transfer": "anynorm.tasks.style_transfer:StyleTransfer",
    "single_style_transfer": "anynorm.tasks.single_style_transfer:SingleStyleTransfer",
    "darts": "anynorm.tasks.darts:FirstOrderSearch",
    "darts_second_order": "anynorm.tasks.darts:SecondOrderSearch",
    "manas_exp3": "anynorm.tasks.manas:Exp3Search",
    "manas_least_squares": "anynorm.tasks.manas:LeastSquaresSearch",
    "random_search": "anynorm.tasks.manas:RandomArchitectureSearch",
    "controller_search": "anynorm.tasks.controller_search:ControllerSearch",
    "source_only": "anynorm.tasks.domain_adaptation:SourceOnly",
    "adabn": "anynorm.tasks.domain_adaptation:AdaBN",
    "dsbn": "anynorm.tasks.adaptation_loops:DSBN",
    "can": "anynorm.tasks.contrastive_adaptation:CAN",
    "can_all_classes": "anynorm.tasks.contrastive_adaptation:CANAllClasses",
    "detection": "anynorm.tasks.detection:Detection",
    "segmentation": "anynorm.tasks.segmentation:Segmentation",
    "video": "anynorm.tasks.video:VideoClassification",
}
"""The class of each task, imported at first use."""


def task_class(name: str) -> type[Task]:
    """Return the class of a task.

    Args:
        name: a key of `TASKS`, or `package.module:Task`.

    Raises:
        DataError: if the task is unknown, or not a subclass of `Task`.
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
