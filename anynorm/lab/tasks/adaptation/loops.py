"""Adaptation in loops: train on the source, then alternate between labels for the target and updates on both domains.

    epochs 0 … source_epochs      cross entropy on the source, with the norms of the source
    then                          the norms of the target become copies of those of the source (`anynorm.copy_domain`)
    every steps_per_loop steps    labels of the target's images, by the network in eval mode with the norms of the target
    every step                    one update by the loss of the method

The adaptation stops after `max_loops` loops, or when the method says so (`is_adapted`); the remaining steps of the run change
nothing. With `decay_steps`, the learning rate of the adaptation is lr · decay_rate^⌊updates / decay_steps⌋.

The labels of a loop are a buffer, so a run that is resumed in the middle of a loop is bit-identical to an uninterrupted one.

`DSBN` (Chang et al. 2019): domain-specific norms, and cross entropy on pseudo labels of the target,

    ŷ = argmax (1 − λ) p₁ + λ p,     λ = 2 / (1 + exp(−10 progress)) − 1

with p₁ the class probabilities of the first stage and p those of the network now. The paper's first stage is a method of domain
adaptation; here it is the network trained on the source, with running statistics of the target (AdaBN).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import TypeVar

from anynorm.errors import SpecError
from anynorm.lab.models.classifier import features_and_logits, find_classifier
from anynorm.lab.tasks.adaptation.data import DomainPair
from anynorm.lab.tasks.adaptation.options import DSBNOptions, LoopOptions
from anynorm.lab.tasks.adaptation.task import SOURCE, TARGET, SourceOnly
from anynorm.lab.tasks.classification.classifier import EVAL_BATCH_SIZE
from anynorm.lab.training.config import Config
from anynorm.lab.training.curve import DivergedError
from anynorm.lab.training.evaluation import Evaluation
from anynorm.lab.training.sampler import derive_seed
from anynorm.lab.training.task import (
    Metrics,
    Optimizers,
    TrainingLoop,
    make_optimizer,
    make_optimizer_for_groups,
    parameter_groups,
)
from anynorm.layers.conditioning import condition, conditional_layers
from anynorm.surgery.domains import copy_domain
from anynorm.surgery.modes import eval_mode
from anynorm.surgery.recalibrate import has_running_stats, recalibrate

_TARGET_STREAM = 4
"""Random stream that chooses the images of the steps of a loop; see `anynorm.lab.training.sampler`."""
ADAPTATION = "adaptation"
LoopOptions_co = TypeVar("LoopOptions_co", bound=LoopOptions, default=LoopOptions, covariant=True)


class LoopedAdaptation(SourceOnly[LoopOptions_co]):
    """Training on the source, then adaptation in loops; a subclass defines `assign_labels` and `adaptation_loss`.

    Attributes:
        num_loops: a buffer, the number of loops started.
        stopped: a buffer, whether the adaptation has stopped.
    """

    num_loops: Tensor
    stopped: Tensor

    def __init__(self, config: Config, data: DomainPair | None = None) -> None:
        super().__init__(config, data)
        if config.grad_accum_steps != 1:
            raise SpecError(
                f"a step of the adaptation has one update; grad_accum_steps must be 1, got {config.grad_accum_steps}."
            )
        if self.options.source_epochs >= config.epochs:
            raise SpecError(f"source_epochs must be less than epochs={config.epochs}; got {self.options.source_epochs}.")
        self.register_buffer("num_loops", torch.zeros((), dtype=torch.long))
        self.register_buffer("stopped", torch.zeros((), dtype=torch.bool))

    # What a method defines ----------------------------------------------------------------------------------------------------

    def assign_labels(self, progress: float) -> None:
        """Assign labels to images of the target.

        Args:
            progress: completed fraction of the adaptation, in [0, 1).
        """
        raise self._undefined("assign_labels")

    def adaptation_loss(self, source: Tensor, labels: Tensor, generator: torch.Generator) -> Metrics:
        """Return the metrics of an update; "loss" is minimized.

        Args:
            source: standardized images of the source.
            labels: their labels.
            generator: CPU random number generator.
        """
        raise self._undefined("adaptation_loss")

    def is_adapted(self) -> bool:
        """Whether the adaptation is finished before its last loop; called after each assignment of labels."""
        return False

    # Steps --------------------------------------------------------------------------------------------------------------------

    @property
    def source_steps(self) -> int:
        """Number of training steps on the source alone."""
        return self.options.source_epochs * self.sampler.steps_per_epoch

    def configure_optimizers(self) -> Optimizers:
        """Return the optimizers of the training on the source and of the adaptation."""
        head = {id(parameter) for parameter in find_classifier(self.model).module.parameters()}
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        groups = []
        for is_head, factor in ((False, 1.0), (True, self.options.head_lr_factor)):
            chosen = [parameter for parameter in parameters if (id(parameter) in head) == is_head]
            lr = factor * (self.options.adaptation_lr or self.config.lr)
            decays = {"constant_lr": True} if self.options.decay_steps else {}  # the schedule is that of `_decay_lr`
            groups += [{**group, "lr": lr, **decays} for group in parameter_groups(self.config, chosen, [self])]
        self._adaptation_optimizer = make_optimizer_for_groups(self.config, groups)
        return {"main": make_optimizer(self.config, [self]), ADAPTATION: self._adaptation_optimizer}

    def _decay_lr(self, num_updates: int) -> None:
        """Set the learning rate of the adaptation after a number of its updates."""
        if self.options.decay_steps:
            factor = self.options.decay_rate ** (num_updates // self.options.decay_steps)
            for group in self._adaptation_optimizer.param_groups:
                group["lr"] = factor * group["initial_lr"]

    def training_step(self, trainer: TrainingLoop) -> Metrics:
        """Update the parameters once, on the source or on both domains."""
        adaptation_step = trainer.step - self.source_steps
        if adaptation_step < 0:
            return super().training_step(trainer)
        if adaptation_step % self.options.steps_per_loop == 0 and not self.stopped:
            self._begin_loop(trainer, is_first=adaptation_step == 0)
        if self.stopped:
            return {}
        self._decay_lr(adaptation_step)
        seed = derive_seed(self.config.seed, _TARGET_STREAM, trainer.step * self.config.devices + self.processes.rank)
        with trainer.autocast():
            images, labels = self.training_batch(trainer.step)
            metrics = self.adaptation_loss(images, labels, torch.Generator().manual_seed(seed))
        trainer.backward(metrics["loss"])
        trainer.update(ADAPTATION)
        return metrics

    def _begin_loop(self, trainer: TrainingLoop, *, is_first: bool) -> None:
        if self.options.max_loops and int(self.num_loops) == self.options.max_loops:
            self.stopped.fill_(True)
            return
        if is_first and self.has_domains:
            for network in (self.model, *trainer.averages.values()):
                copy_domain(network, SOURCE)
            if self.options.recalibrate and has_running_stats(self.model):
                with condition(self.model, TARGET):
                    recalibrate(self.model, self.target_batches())
        self.num_loops += 1
        start = self.options.source_epochs / self.config.epochs
        self.assign_labels((trainer.progress - start) / (1 - start))
        self.stopped.fill_(self.is_adapted())

    @property
    def has_domains(self) -> bool:
        """Whether a norm of the network is domain-specific."""
        return bool(conditional_layers(self.model))

    def forward_in(self, domain: int, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and logits of images with the norms of a domain."""
        with condition(self.model, domain, strict=False):
            return features_and_logits(self.model, find_classifier(self.model), images)

    def outputs(self, images: Tensor, domain: int) -> tuple[Tensor, Tensor]:
        """Return features and logits of uint8 images in eval mode.

        Raises:
            DivergedError: if they are not finite.
        """
        with eval_mode(self.model):
            batches = (self.data.standardize(self.to_device(part)) for part in torch.split(images, EVAL_BATCH_SIZE))
            parts = [self.forward_in(domain, batch) for batch in batches]
        features, logits = (torch.cat(tensors).float() for tensors in zip(*parts, strict=True))
        if not bool(torch.isfinite(features).all() & torch.isfinite(logits).all()):
            raise DivergedError(f"the features are not finite in the step that begins loop {int(self.num_loops)}")
        return features, logits

    # Evaluation ---------------------------------------------------------------------------------------------------------------

    @property
    def test_domain(self) -> int:
        """The domain whose norms are tested: the source before the adaptation, then the target."""
        return TARGET if int(self.num_loops) else SOURCE

    def evaluation(self) -> Evaluation:
        """Return the metrics on the target; before the adaptation, also the error with AdaBN."""
        evaluation = super().evaluation()
        if int(self.num_loops):
            return evaluation
        return evaluation | Evaluation({"adabn_error": self.evaluate_recalibrated().metrics["error"]})


class DSBN(LoopedAdaptation[DSBNOptions]):
    """Unsupervised domain adaptation by domain-specific norms and pseudo labels (DSBN, Chang et al. 2019).

    Attributes:
        first_probabilities: a buffer, the class probabilities of the target's images before adaptation, (n, K).
        pseudo_labels: a buffer, their labels in this loop, (n,).
    """

    first_probabilities: Tensor
    pseudo_labels: Tensor

    def __init__(self, config: Config, data: DomainPair | None = None) -> None:
        super().__init__(config, data)
        count = len(self.target_images)
        self.register_buffer("first_probabilities", torch.zeros(count, self.data.num_classes))
        self.register_buffer("pseudo_labels", torch.zeros(count, dtype=torch.long))

    def assign_labels(self, progress: float) -> None:
        """Label all images of the target by the probabilities of the first stage and of the current network."""
        if int(self.num_loops) == 1:
            self.first_probabilities.copy_(self._probabilities())
        share = 2 / (1 + math.exp(-10 * progress)) - 1
        self.pseudo_labels.copy_(((1 - share) * self.first_probabilities + share * self._probabilities()).argmax(1))

    def _probabilities(self) -> Tensor:
        return self.outputs(self.target_images, TARGET)[1].softmax(1)

    def adaptation_loss(self, source: Tensor, labels: Tensor, generator: torch.Generator) -> Metrics:
        """Return the cross entropy on the source, and on equally many target images with pseudo labels."""
        chosen = torch.randperm(len(self.target_images), generator=generator)[: len(source)]
        target = self.data.standardize(self.to_device(self.target_images[chosen]))
        source_loss = self.metrics(self.forward_in(SOURCE, source)[1], labels)["loss"]
        pseudo_labels = self.pseudo_labels[chosen.to(self.pseudo_labels.device)]
        target_loss = self.metrics(self.forward_in(TARGET, target)[1], pseudo_labels)["loss"]
        return {"loss": source_loss + target_loss, "source_loss": source_loss, "target_loss": target_loss}
