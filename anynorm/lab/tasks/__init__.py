"""Tasks: networks, data, losses and metrics of experiments.

`anynorm.lab.training.task.Task` is their base class; `anynorm.lab.training.trainer` has the training loop.

classification            Image classification.
adversarial               Adversarial training of image classifiers: training on adversarial images only (Madry et al. 2018).
advprop                   Image classification by training on clean and adversarial images (AdvProp, Xie et al. 2020).
architecture_evaluation   Image classification by an architecture of the DARTS space, trained from scratch (Liu et al. 2019).
few_shot                  Few-shot classification by imprinted weights (Qi et al. 2018): novel classes from a few images of each.
generation                Class-conditional image generation by a GAN with a projection discriminator (Miyato & Koyama 2018).
style_transfer            Style transfer with any style, by one decoder (AdaIN, Huang & Belongie 2017).
single_style_transfer     Style transfer with a single style, by a network that is trained for it (Johnson et al. 2016).
darts                     Differentiable architecture search (DARTS, Liu et al. 2019), first order.
darts_second_order        Differentiable architecture search (DARTS, Liu et al. 2019), second order.
manas_exp3                Architecture search by multi-agent bandits with the policy Exp3 (MANAS, Carlucci et al. 2019).
manas_least_squares       Architecture search by multi-agent bandits with a least-squares policy (MANAS, Carlucci et al. 2019).
random_search             Architecture search by random sampling with shared weights, a baseline.
controller_search         Architecture search by reinforcement learning, with the controller of ENAS (Pham et al. 2018).
source_only               Image classification in a target domain after training in a source domain, without adaptation.
adabn                     Unsupervised domain adaptation by running statistics of the target (AdaBN, Li et al. 2016).
dsbn                      Unsupervised domain adaptation by domain-specific norms and pseudo labels (DSBN, Chang et al. 2019).
can                       Unsupervised domain adaptation by contrastive adaptation networks (CAN, Kang et al. 2019).
can_all_classes           Unsupervised domain adaptation by CAN (Kang et al. 2019), with the loss of the authors' code.
detection                 Object detection with Faster R-CNN or Mask R-CNN.
segmentation              Semantic segmentation with a PSP or ASPP head.
video                     Video classification by inflated 3-D networks (I3D, Carreira & Zisserman 2017).
package.module:Task       a subclass of `anynorm.lab.training.task.Task`
"""

from __future__ import annotations

import torch

from anynorm.errors import DataError, unknown_name
from anynorm.io.checkpoints import import_object
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
"""The class of each task, imported at first use."""


def task_class(name: str) -> type[Task]:
    """Return the class of a task.

    Args:
        name: a key of `TASKS`, or `package.module:Task`.

    Raises:
        DataError: if the task is unknown, or not a subclass of `Task`.
    """
    if name not in TASKS and ":" not in name:
        raise DataError(unknown_name("task", name, TASKS, "package.module:Task"))
    task = import_object(TASKS.get(name, name))
    if not isinstance(task, type) or not issubclass(task, Task):
        raise DataError(f"{name!r} must be a subclass of anynorm.Task; got {task!r}.")
    return task


def make_task(config: Config) -> Task:
    """Return the task of a run, with untrained networks."""
    task = task_class(config.task)
    torch.manual_seed(config.seed)
    return task(config)
