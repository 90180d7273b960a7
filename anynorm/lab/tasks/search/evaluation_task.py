"""Training of a searched architecture of the DARTS space from scratch (Liu et al. 2019, sec. 3.2).

    loss = CE(logits, y) + auxiliary_weight CE(auxiliary logits, y),   probability of drop-path = drop_path · progress

Use the task classification for architectures of other spaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from anynorm.errors import SpecError
from anynorm.lab.data import ImageDataset, StreamedDataset
from anynorm.lab.models.search import parse_space
from anynorm.lab.models.search.darts_evaluation import EvaluationNetwork, evaluation_network
from anynorm.lab.tasks.classification.task import Classification
from anynorm.lab.training.clipping import clipping_optimizer
from anynorm.lab.training.config import Config
from anynorm.lab.training.images import Batch
from anynorm.lab.training.task import Metrics, Step


class ArchitectureEvaluation(Classification):
    """Image classification by an architecture of the DARTS space, trained from scratch (Liu et al. 2019).

    The network has an auxiliary head and drop-path, as published; cutout is the setting `cutout` of all tasks.

    Options:
        auxiliary_weight: weight of the loss of the auxiliary head; 0 for no head.
        drop_path: probability of dropping a path of a cell at the end of training; it grows linearly from 0.
        clip_grad_norm: maximum norm of the gradient; 0 for no clipping.

    Raises:
        SpecError: if the model is not `darts:GENOTYPE`, or an option is outside its range.
    """

    default_options: ClassVar[Mapping[str, Any]] = {
        **Classification.default_options,
        "auxiliary_weight": 0.4,
        "drop_path": 0.2,
        "clip_grad_norm": 5.0,
    }
    comparison_defaults: ClassVar[Mapping[str, Any]] = {
        "norms": ("bn", "gn:8", "bgn"),
        "batch_sizes": (32,),
        "model": "darts.n3:v2",
        "width": 0.12,
        "lr": 0.025,
    }
    model: EvaluationNetwork

    def __init__(self, config: Config, data: ImageDataset | StreamedDataset | None = None) -> None:
        super().__init__(config, data)
        _check_options(self.options)

    def make_model(self) -> nn.Module:
        """Return the untrained network of the genotype, with an auxiliary head unless its weight is 0."""
        parts = parse_space(self.config.model)
        if parts is None or parts.space.network is not evaluation_network or not parts.architecture:
            raise SpecError(
                f"the model of architecture_evaluation must be darts:GENOTYPE; got {self.config.model!r}. "
                "Other architectures: task classification."
            )
        sizes: dict[str, Any] = parts.sizes(self.config.width)
        auxiliary = self.options["auxiliary_weight"] > 0
        return self.apply_norms(evaluation_network(parts.architecture, self.data.shape, **sizes, auxiliary=auxiliary))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer of the run, with gradient clipping."""
        return clipping_optimizer(self.config, list(self.model.parameters()), self.options["clip_grad_norm"])

    def training_step(self, step: Step) -> Metrics:
        """Set the probability of drop-path and update the parameters once."""
        self.model.set_drop_path(self.options["drop_path"] * step.progress)
        return super().training_step(step)

    def loss(self, batch: Batch) -> Metrics:
        """Return the loss with that of the auxiliary head, and the error in percent."""
        x, targets = batch
        logits, auxiliary = self.model.forward_both(x)
        metrics = self.metrics(logits, targets)
        if auxiliary is not None:
            metrics["auxiliary_loss"] = self.metrics(auxiliary, targets)["loss"]
            metrics["loss"] = metrics["loss"] + self.options["auxiliary_weight"] * metrics["auxiliary_loss"]
        return metrics


def _check_options(options: Mapping[str, Any]) -> None:
    for name in ("auxiliary_weight", "clip_grad_norm"):
        if options[name] < 0:
            raise SpecError(f"option {name} must be 0 or more; got {options[name]}.")
    if not 0 <= options["drop_path"] < 1:
        raise SpecError(f"option drop_path must be in [0, 1); got {options['drop_path']}.")
