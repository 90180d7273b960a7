"""Errors of a classifier on adversarial test images, attacked in both modes of its norms.

    robust_error_pgd4               norms in eval mode during the attack
    robust_error_pgd4_train_mode    norms in train mode during the attack

In both cases the adversarial images are classified in eval mode. The two differ only in the attack, and the attack with the
larger error is the stronger one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from anynorm.lab.attacks import NORM_MODES, Attack, StandardizedModel
from anynorm.lab.data.standardization import Standardized
from anynorm.surgery.find import find_norms

BATCH_SIZE = 100
"""Number of images that are attacked together: the batch whose statistics an attack in train mode uses."""
SEED = 1_000_003
"""Seed of the random starts, the same for all runs."""
_NAME = re.compile(r"robust_error_([a-z0-9]+)(_train_mode)?(_.+)?")


@dataclass(frozen=True)
class RobustMetric:
    """The error on the adversarial images of one attack, a metric.

    Args:
        attack: the attack without punctuation, such as "pgd4".
        norm_mode: mode of the norms during the attack, "eval" or "train".
        branch: suffix of the branch of the norms that is attacked, such as "_adversarial_branch"; "" if there is one branch.

    >>> RobustMetric("pgd4", "train").name
    'robust_error_pgd4_train_mode'
    >>> RobustMetric.parse("robust_error_pgd4_train_mode_adversarial_branch")
    RobustMetric(attack='pgd4', norm_mode='train', branch='_adversarial_branch')
    """

    attack: str
    norm_mode: str = "eval"
    branch: str = ""

    @classmethod
    def of(cls, attack: Attack) -> RobustMetric:
        """Return the metric of an attack."""
        return cls(str(attack).replace(":", ""), attack.norm_mode)

    @classmethod
    def parse(cls, name: str) -> RobustMetric | None:
        """Return the metric with a name; None if the name is that of another metric."""
        match = _NAME.fullmatch(name)
        return match and cls(match[1], "train" if match[2] else "eval", match[3] or "")

    @property
    def name(self) -> str:
        """The name of the metric in the results of a run."""
        return f"robust_error_{self._suffix}"

    @property
    def accuracy(self) -> str:
        """The name of the accuracy, 100 % − error, in the rows of recipes."""
        return f"robust_accuracy_{self._suffix}"

    @property
    def _suffix(self) -> str:
        return self.attack + "_train_mode" * (self.norm_mode == "train") + self.branch

    def with_mode(self, norm_mode: str) -> RobustMetric:
        """Return the metric of the same attack and branch with another mode of the norms during the attack."""
        return replace(self, norm_mode=norm_mode)


def count_images(num_attacked: int, available: int) -> int:
    """Return the number of images to attack: a multiple of the batch size, so that batch statistics come from equal batches.

    >>> count_images(1000, 449), count_images(1000, 30), count_images(250, 10_000)
    (400, 30, 200)
    """
    count = min(num_attacked, available)
    return count if count < BATCH_SIZE else count - count % BATCH_SIZE


def count_errors(model: nn.Module, batches: Iterable[tuple[int, Tensor, Tensor]], attacks: Iterable[Attack]) -> dict[str, int]:
    """Return the number of misclassified adversarial images by attack and mode; see `find_hits`."""
    return {name: hits.count(False) for name, hits in find_hits(model, batches, attacks).items()}


def find_hits(
    model: nn.Module, batches: Iterable[tuple[int, Tensor, Tensor]], attacks: Iterable[Attack]
) -> dict[str, list[bool]]:
    """Return which adversarial images are classified correctly, by attack and mode; the model then is in eval mode.

    Args:
        model: a model of images in [0, 1].
        batches: index of the batch (the seed of its random starts), images and labels.
        attacks: the attacks; each is run in both modes of the norms.
    """
    differs = modes_differ(model)
    variants = [replace(attack, norm_mode=mode) for attack in attacks for mode in NORM_MODES]
    hits: dict[RobustMetric, list[bool]] = {RobustMetric.of(attack): [] for attack in variants}
    for index, images, labels in batches:
        for attack in variants:
            if attack.norm_mode == "train" and not differs:
                continue
            generator = torch.Generator().manual_seed(SEED + index)
            logits = model(attack(model, images, labels, generator))
            hits[RobustMetric.of(attack)] += (logits.argmax(1) == labels).tolist()
    return {metric.name: hits[metric if differs else metric.with_mode("eval")] for metric in hits}


def find_losses(model: nn.Module, batches: Iterable[tuple[int, Tensor, Tensor]], attack: Attack) -> list[float]:
    """Return the cross entropies of adversarial images.

    Args:
        model: a model of images in [0, 1].
        batches: see `count_errors`.
        attack: the attack.
    """
    losses: list[float] = []
    for index, images, labels in batches:
        adversarial = attack(model, images, labels, torch.Generator().manual_seed(SEED + index))
        losses += nn.functional.cross_entropy(model(adversarial).float(), labels, reduction="none").tolist()
    return losses


def modes_differ(model: nn.Module) -> bool:
    """Whether a norm of the model has running statistics; otherwise train and eval mode are the same."""
    return any(site.unsupported or site.info.running_stats for site in find_norms(model))


def pixel_model(model: nn.Module, data: Standardized) -> StandardizedModel:
    """Wrap a model of standardized images of a data set, so that it takes images in [0, 1]."""
    return StandardizedModel(model, data.mean / 255, data.std / 255)


def to_pixels(x: Tensor, data: Standardized) -> Tensor:
    """Return standardized images of a data set as images in [0, 1]."""
    mean, std = (values.to(x.device, non_blocking=True) for values in (data.mean, data.std))
    return ((x * std + mean) / 255).clamp(0, 1)
