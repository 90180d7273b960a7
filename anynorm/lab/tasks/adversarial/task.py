"""Adversarial training (Madry et al. 2018; bgn Table 5): training on adversarial images only.

    min_θ  mean L(f_θ(x'), y),    x' = attack(f_θ, x, y) in [0, 1], within ε of x

The random starts of the attack depend on the seed, the step and the micro-batch. The attack does not change running statistics,
so they are updated once per step, by the adversarial images, in both modes of the norms during the attack (`attack_norm_mode`).
Public code often attacks in train mode, and each of the k forward passes of an attack then updates the running statistics.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import TypeVar

from anynorm.lab.data import ImageDataset, StreamedDataset
from anynorm.lab.tasks.adversarial.options import AdversarialOptions
from anynorm.lab.tasks.classification.robustness import RobustMetric, pixel_model, to_pixels
from anynorm.lab.tasks.classification.task import Classification
from anynorm.lab.training.comparison_defaults import ComparisonDefaults
from anynorm.lab.training.config import Config
from anynorm.lab.training.evaluation import Evaluation
from anynorm.lab.training.images import Batch
from anynorm.lab.training.sampler import derive_seed
from anynorm.lab.training.task import Metric

_ATTACK_STREAM = 4
"""Random stream of the attack; see `anynorm.lab.training.sampler` for the others."""
AdversarialOptions_co = TypeVar("AdversarialOptions_co", bound=AdversarialOptions, default=AdversarialOptions, covariant=True)


class Adversarial(Classification[AdversarialOptions_co]):
    """Adversarial training of image classifiers: training on adversarial images only (Madry et al. 2018).

    The metric is the error under the first attack of `attack`, with norms in eval mode; it is part of every evaluation.

    Args:
        config: the run.
        data: all images; None for those of `config.data`.
    """

    comparison_defaults: ClassVar[ComparisonDefaults] = ComparisonDefaults(
        norms=("bn", "gn:8", "bgn"),
        batch_sizes=(32,),
        base=Config(model="wrn-10-2", width=0.5, epochs=4, lr=0.05, num_evals=2),
    )

    def __init__(self, config: Config, data: ImageDataset | StreamedDataset | None = None) -> None:
        super().__init__(config, data)
        self.train_attack = self.options.make_train_attack()

    @classmethod
    def metric_for(cls, config: Config) -> Metric:
        """Return the error under the first attack of evaluations; without one, the error."""
        attacks = cls.options_of(config).make_attacks()
        return Metric(RobustMetric.of(attacks[0]).name, "%") if attacks else cls.metric

    def training_batch(self, step: int, micro_batch: int = 0) -> Any:
        """Return the adversarial images, standardized, and the targets of one micro-batch of a step."""
        x, targets = super().training_batch(step, micro_batch)
        return self.attack_batch((x, targets), step, micro_batch), targets

    def attack_batch(self, batch: Batch, step: int, micro_batch: int) -> Tensor:
        """Return the standardized adversarial images of a standardized batch."""
        x, targets = batch
        generator = torch.Generator().manual_seed(derive_seed(self.sampler.seed(step, micro_batch), _ATTACK_STREAM, 0))
        model = pixel_model(self.model, self.data)
        return model.standardize(self.train_attack(model, to_pixels(x, self.data), targets, generator))

    def evaluation(self) -> Evaluation:
        """Return the metrics of the test set and the errors on adversarial images."""
        return self.evaluate_clean() | self.evaluate_robust() if self.attacks else self.evaluate_clean()
