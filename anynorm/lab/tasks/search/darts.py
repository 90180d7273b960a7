"""DARTS: the architecture parameters α follow gradients of the validation loss, by `anynorm.lab.tasks.search.bilevel`.

α ← α − Adam(gradient of L_val)                       on a batch of one half of the training images
w ← w − SGD(∇_w L_train(w, α)), gradients clipped     on a batch of the other half
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from anynorm.diagnostics.buffers import preserve_buffers
from anynorm.errors import SpecError
from anynorm.lab.tasks.search.bilevel import frozen, second_order_gradients
from anynorm.lab.tasks.search.options import DartsOptions
from anynorm.lab.tasks.search.task import ALPHA, WEIGHTS, ArchitectureSearch
from anynorm.lab.training.comparison_defaults import ComparisonDefaults
from anynorm.lab.training.curve import DivergedError
from anynorm.lab.training.task import FUSED, Metrics, Optimizers, TrainingLoop


class DifferentiableSearch(ArchitectureSearch[DartsOptions]):
    """The base class of searches in which the architecture parameters α follow gradients."""

    comparison_defaults: ClassVar[ComparisonDefaults] = replace(
        ArchitectureSearch.comparison_defaults,
        base=replace(ArchitectureSearch.comparison_defaults.base, options=DartsOptions(alpha_lr=0.01)),
    )

    def configure_optimizers(self) -> Optimizers:
        """Return the optimizer of the weights, and Adam for α with a constant learning rate."""
        alpha = torch.optim.Adam(
            [{"params": self.model.alpha_parameters(), "constant_lr": True}],
            self.options.alpha_lr,
            (0.5, 0.999),
            weight_decay=self.options.alpha_weight_decay,
            fused=FUSED,
        )
        return {"weights": self.weight_optimizer(), "alpha": alpha}

    def update_alpha(self, trainer: TrainingLoop) -> None:
        """Update α by its gradients.

        Raises:
            DivergedError: if α is infinite or NaN afterwards.
        """
        trainer.update("alpha")
        if not all(bool(alpha.isfinite().all()) for alpha in self.model.alpha_parameters()):
            lr = self.options.alpha_lr
            raise DivergedError(
                f"the architecture parameters α are not finite in step {trainer.step}; use a lower lr ({self.config.lr:g}) or "
                f"alpha_lr ({lr:g})"
            )


class FirstOrderSearch(DifferentiableSearch):
    """Differentiable architecture search (DARTS, Liu et al. 2019), first order.

    The architecture parameters α follow the gradient of the validation loss at the current weights (ξ = 0).
    """

    def update_architecture(self, trainer: TrainingLoop) -> Metrics:
        """Update α by a batch of its images."""
        with preserve_buffers(self.model), frozen(self.model.weight_parameters()), trainer.autocast():
            metrics = self.batch_loss(trainer.step, ALPHA)
        trainer.backward(metrics["loss"])
        self.update_alpha(trainer)
        return {f"alpha_{name}": value for name, value in metrics.items()}


class SecondOrderSearch(DifferentiableSearch):
    """Differentiable architecture search (DARTS, Liu et al. 2019), second order.

    The architecture parameters α follow the gradient of the validation loss through one unrolled step of the weights, which takes
    about three times the time of first order.

    Raises:
        SpecError: if the run has several devices, or 16-bit precision with scaled gradients.
    """

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.config.devices > 1:
            raise SpecError(f"second-order search must have devices=1; got {self.config.devices}. Usable: first order.")
        if self.config.precision == "16-mixed":
            raise SpecError("second-order search must have precision 32 or bf16-mixed; got 16-mixed.")

    def update_architecture(self, trainer: TrainingLoop) -> Metrics:
        """Update α by a batch of its images, through a step of the weights on the batch of the weights."""
        losses: dict[int, Metrics] = {}

        def loss(micro_batch: int) -> Tensor:
            with trainer.autocast():
                losses[micro_batch] = self.batch_loss(trainer.step, micro_batch)
            return losses[micro_batch]["loss"]

        alphas = self.model.alpha_parameters()
        with preserve_buffers(self.model):
            gradients = second_order_gradients(
                lambda: loss(WEIGHTS),
                lambda: loss(ALPHA),
                self.model.weight_parameters(),
                alphas,
                self.config.lr_at(trainer.progress),
            )
        for alpha, gradient in zip(alphas, gradients, strict=True):
            alpha.grad = gradient
        self.update_alpha(trainer)
        return {f"alpha_{name}": value.detach() for name, value in losses[ALPHA].items()}
