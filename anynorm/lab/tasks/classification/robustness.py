"""Errors of a classifier on adversarial test images, attacked in both modes of its norms.

    robust_error_pgd4               norms in eval mode during the attack
    robust_error_pgd4_train_mode    norms in train mode during the attack

In both cases the adversarial images are classified in eval mode. The two differ only in the attack, and the attack with the
larger error is the stronger one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from anynorm.lab.attacks import NORM_MODES, Attack, StandardizedModel
from anynorm.lab.data.standardization import Standardized
from anynorm.surgery.find import find_norms

BATCH_SIZE = 100
"""Number of images that are attacked together: the batch whose statistics an attack in train mode uses."""
SEED = 1_000_003
"""Seed of the random starts, the same for all runs."""
PREFIX, TRAIN_MODE = "robust_error_", "_train_mode"


def metric_name(attack: Attack) -> str:
    """Return the name of the error under an attack.

    >>> from anynorm.lab.attacks import PGD
    >>> metric_name(PGD(4)), metric_name(PGD(4, norm_mode="train"))
    ('robust_error_pgd4', 'robust_error_pgd4_train_mode')
    """
    return PREFIX + str(attack).replace(":", "") + TRAIN_MODE * (attack.norm_mode == "train")


def count_images(num_attacked: int, available: int) -> int:
    """Return the number of images to attack: a multiple of the batch size, so that batch statistics come from equal batches.

    >>> count_images(1000, 449), count_images(1000, 30), count_images(250, 10_000)
    (400, 30, 200)
    """
    count = min(num_attacked, available)
    return count if count < BATCH_SIZE else count - count % BATCH_SIZE


def count_errors(model: nn.Module, batches: Iterable[tuple[int, Tensor, Tensor]], attacks: Iterable[Attack]) -> dict[str, int]:
    """Return the number of misclassified adversarial images by attack and mode; the model is in eval mode when it classifies.

    Args:
        model: a model of images in [0, 1].
        batches: batch number (the seed of its random starts), images and labels.
        attacks: the attacks; each is run in both modes of the norms.
    """
    differs = modes_differ(model)
    variants = [replace(attack, norm_mode=mode) for attack in attacks for mode in NORM_MODES]
    wrong = {metric_name(attack): 0 for attack in variants}
    for number, images, labels in batches:
        for attack in variants:
            if attack.norm_mode == "train" and not differs:
                continue
            generator = torch.Generator().manual_seed(SEED + number)
            logits = model(attack(model, images, labels, generator))
            wrong[metric_name(attack)] += int((logits.argmax(1) != labels).sum())
    if not differs:
        wrong |= {name: wrong[name.removesuffix(TRAIN_MODE)] for name in wrong}
    return wrong


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
