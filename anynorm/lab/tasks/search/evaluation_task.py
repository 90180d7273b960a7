"""Training of a searched architecture of the DARTS space from scratch (Liu et al. 2019, sec. 3.2).

    loss = CE(logits, y) + auxiliary_weight CE(auxiliary logits, y),   probability of drop-path = drop_path · progress

Use the task classification for architectures of other spaces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from anynorm.errors import SpecError
from anynorm.lab.models.search import parse_space
from anynorm.lab.models.search.darts.evaluation_network import EvaluationNetwork, evaluation_network
from anynorm.lab.tasks.classification.options import ClassificationOptions
from anynorm.lab.tasks.classification.task import Classification
from anynorm.lab.training.clipping import clipping_optimizer
from anynorm.lab.training.comparison_defaults import ComparisonDefaults
from anynorm.lab.training.config import Config
from anynorm.lab.training.images import Batch
from anynorm.lab.training.options import option
from anynorm.lab.training.task import Metrics, TrainingLoop


@dataclass(frozen=True)
class EvaluationOptions(ClassificationOptions):
    """The options of `ArchitectureEvaluation`."""

    auxiliary_weight: float = option(0.4, "weight of the loss of the auxiliary head; 0 for no head.", minimum=0)
    drop_path: float = option(
        0.2, "probability of dropping a path of a cell at the end of training; it grows linearly from 0.", minimum=0, below=1
    )
    clip_grad_norm: float = option(5.0, "maximum norm of the gradient; 0 for no clipping.", minimum=0)


class ArchitectureEvaluation(Classification[EvaluationOptions]):
    """Image classification by an architecture of the DARTS space, trained from scratch (Liu et al. 2019).

    The network has an auxiliary head and drop-path, as published; cutout is the setting `cutout` of all tasks.

    Raises:
        SpecError: if the model is not `darts:GENOTYPE`.
    """

    comparison_defaults: ClassVar[ComparisonDefaults] = ComparisonDefaults(
        norms=("bn", "gn:8", "bgn"),
        batch_sizes=(32,),
        base=Config(model="darts.n3:v2", epochs=2, lr=0.025, width=0.12),
    )
    model: EvaluationNetwork

    def make_model(self) -> nn.Module:
        """Return the untrained network of the genotype, with an auxiliary head unless its weight is 0."""
        parts = parse_space(self.config.model)
        if parts is None or parts.space.network is not evaluation_network or not parts.architecture:
            raise SpecError(
                f"the model of architecture_evaluation must be darts:GENOTYPE; got {self.config.model!r}. "
                "Other architectures: task classification."
            )
        sizes: dict[str, Any] = parts.sizes(self.config.width)
        auxiliary = self.options.auxiliary_weight > 0
        return self.apply_norms(evaluation_network(parts.architecture, self.data.shape, **sizes, auxiliary=auxiliary))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer of the run, with gradient clipping."""
        return clipping_optimizer(self.config, list(self.model.parameters()), self.options.clip_grad_norm)

    def training_step(self, trainer: TrainingLoop) -> Metrics:
        """Set the probability of drop-path and update the parameters once."""
        self.model.set_drop_path(self.options.drop_path * trainer.progress)
        return super().training_step(trainer)

    def loss(self, batch: Batch) -> Metrics:
        """Return the loss with that of the auxiliary head, and the error in percent."""
        x, targets = batch
        logits, auxiliary = self.model.forward_both(x)
        metrics = self.metrics(logits, targets)
        if auxiliary is not None:
            metrics["auxiliary_loss"] = self.metrics(auxiliary, targets)["loss"]
            metrics["loss"] = metrics["loss"] + self.options.auxiliary_weight * metrics["auxiliary_loss"]
        return metrics
