"""AdvProp (Xie et al. 2020; sabn eq. 7): clean and adversarial images, each through a branch of the norms.

    L = w (L(f_clean(x), y) + L(f_adv(x'), y)),    x' = attack(f_adv, x, y)

w = 1 is the sum of eq. 7, w = 0.5 the mean, as in the public code of sabn. A branch is a domain of the norms, set by
`anynorm.condition`:

    domain 0    clean images
    domain 1    adversarial images

(as in that code; the text of the paper, eq. 8, has them the other way round). `auxbn@2` and `saauxbn@2` have statistics and an
affine per domain. Norms that take no condition (`bn`, `modenorm:2`) have one branch for both.

Where every norm has statistics per domain, clean and adversarial images are one batch of one forward pass, with the domain of
each image as the condition; a test checks that it equals two passes. Other norms would pool the statistics of both kinds of
images in one pass, so they get two passes, clean images first, as in the public code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from anynorm.lab.attacks import Attack
from anynorm.lab.tasks.adversarial.options import AdvPropOptions
from anynorm.lab.tasks.adversarial.task import Adversarial
from anynorm.lab.tasks.classification.robustness import count_images, find_losses, pixel_model
from anynorm.lab.tasks.classification.task import Classification
from anynorm.lab.training.comparison_defaults import ComparisonDefaults
from anynorm.lab.training.config import Config
from anynorm.lab.training.distributed import Processes
from anynorm.lab.training.evaluation import Evaluation
from anynorm.lab.training.images import Batch
from anynorm.lab.training.task import Metric, Metrics
from anynorm.layers.conditioning import condition, conditional_layers
from anynorm.layers.norm import Norm
from anynorm.surgery.find import find_norms

CLEAN, ADVERSARIAL = 0, 1
"""The domains."""
BRANCHES = {"": CLEAN, "_adversarial_branch": ADVERSARIAL}
"""The domain by the end of a metric's name."""


class AdvProp(Adversarial[AdvPropOptions]):
    """Image classification by training on clean and adversarial images (AdvProp, Xie et al. 2020).

    The norms have a branch for clean and one for adversarial images. The metric is the error on clean images by the clean branch.
    After the last step, evaluations have the errors under attacks; the attacked branch is the one that classifies. Metrics of the
    adversarial branch end in `_adversarial_branch`; they are equal to those of the clean branch for norms that take no condition.
    With `loss_attack`, every evaluation has the cross entropy of attacked images by the adversarial branch, `adversarial_loss`.

    Args:
        config: the run.
        data: all images; None for those of `config.data`.
    """

    comparison_defaults: ClassVar[ComparisonDefaults] = replace(
        Adversarial.comparison_defaults,
        norms=("bn", "modenorm:2", "auxbn@2", "saauxbn@2"),
        base=replace(Adversarial.comparison_defaults.base, model="preact_resnet8", width=None),
    )

    @classmethod
    def metric_for(cls, config: Config) -> Metric:
        """Return the error on clean images by the clean branch."""
        return cls.metric

    @cached_property
    def takes_condition(self) -> bool:
        """Whether a norm has branches."""
        return bool(conditional_layers(self.model))

    @cached_property
    def has_domain_stats(self) -> bool:
        """Whether every norm has statistics per domain, so that the domains can be mixed in one pass."""
        modules = [site.module for site in find_norms(self.model)]
        return all(isinstance(module, Norm) and module.norm_spec.affine.num_domains for module in modules)

    def training_batch(self, step: int, micro_batch: int = 0) -> Any:
        """Return clean images, adversarial images and the targets of one micro-batch of a step; images are standardized."""
        x, targets = Classification.training_batch(self, step, micro_batch)
        with condition(self.model, ADVERSARIAL, strict=False):
            return x, self.attack_batch((x, targets), step, micro_batch), targets

    def loss(self, batch: Any) -> Metrics:
        """Return the weighted sum of the losses of both branches, and loss and error of each."""
        clean, adversarial, targets = batch
        metrics, adversarial_metrics = (self.metrics(logits, targets) for logits in self.logits(clean, adversarial))
        total = self.options.loss_weight * (metrics["loss"] + adversarial_metrics["loss"])
        named = {f"adversarial_{name}": value.detach() for name, value in adversarial_metrics.items()}
        return {"loss": total, "clean_loss": metrics["loss"].detach(), "error": metrics["error"], **named}

    def logits(self, clean: Tensor, adversarial: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of clean images by the clean branch and of adversarial images by the adversarial branch."""
        if self.has_domain_stats:
            sizes = [len(clean), len(adversarial)]
            domains = torch.tensor([CLEAN, ADVERSARIAL]).repeat_interleave(torch.tensor(sizes)).to(clean.device)
            with condition(self.model, domains):
                both = self.model(torch.cat([clean, adversarial]))
            return both[: sizes[0]], both[sizes[0] :]
        with condition(self.model, CLEAN, strict=False):
            clean_logits = self.model(clean)
        with condition(self.model, ADVERSARIAL, strict=False):
            return clean_logits, self.model(adversarial)

    def evaluation(self) -> Evaluation:
        """Return the metrics of both branches, after the last step also those on adversarial images."""
        result = Evaluation()
        for suffix, domain in BRANCHES.items():
            if domain == CLEAN or self.takes_condition:
                with condition(self.model, domain, strict=False):
                    branch = Classification.evaluation(self)
            result |= branch.with_suffix(suffix)
        attack = self.options.make_loss_attack()
        return result if attack is None else result | self.evaluate_adversarial_loss(attack)

    def evaluate_adversarial_loss(self, attack: Attack) -> Evaluation:
        """Return the mean cross entropy of attacked test images by the adversarial branch, in eval mode."""
        count = count_images(self.options.num_attacked, self.images.num_tests)
        processes = Processes() if self.config.sync else self.processes
        with condition(self.model, ADVERSARIAL, strict=False):
            batches = self._attacked_batches(count, processes)
            losses = find_losses(pixel_model(self.model, self.data), batches, attack)
        metrics = {"adversarial_loss": processes.sum([sum(losses)])[0] / count}
        return Evaluation(metrics, {"adversarial_loss": losses} if processes.count == 1 else {})

    def eval_batches(self, batch_size: int) -> Iterator[Batch]:
        """Return standardized test images and their labels, in order; while they are used, the clean branch is set."""
        with condition(self.model, CLEAN, strict=False):
            yield from super().eval_batches(batch_size)

    def check(self) -> None:
        """Raise DataError if the model fails on the images or does not return one logit per class."""
        with condition(self.model, CLEAN, strict=False):
            super().check()
