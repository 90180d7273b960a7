"""Image classification: cross entropy on augmented images, error rate in percent on the test set."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from anynorm.data import ImageDataset, augment
from anynorm.errors import DataError
from anynorm.training.config import Config

EVAL_BATCH_SIZE = 500


class Classification:
    """Classification of the images of a data set.

    Args:
        config: the run; its number of images, augmentation, label smoothing and seed are used.
        data: all images.

    Raises:
        DataError: if the data set has fewer images than the run takes.
    """

    def __init__(self, config: Config, data: ImageDataset) -> None:
        self.config, self.data = config, data
        self.images, self.labels = data.train
        if config.num_train is not None:
            _check_count("num_train", config.num_train, len(self.images))
            generator = torch.Generator().manual_seed(config.seed)
            chosen = torch.randperm(len(self.images), generator=generator)[: config.num_train]
            self.images, self.labels = self.images[chosen], self.labels[chosen]
        if config.num_test is not None:
            images, labels = data.test
            _check_count("num_test", config.num_test, len(images))
            self.data = replace(data, test=(images[: config.num_test], labels[: config.num_test]))

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return augmented images and targets (n, classes): crop, flip, cutout, mixup, in this order."""
        config = self.config
        x = self.data.standardize(self.images[indices])
        if config.crop:
            x = augment.random_crop(x, config.crop, generator)
        if config.flip:
            x = augment.random_flip(x, generator)
        if config.cutout:
            x = augment.cutout(x, config.cutout, generator)
        targets = nn.functional.one_hot(self.labels[indices], self.data.num_classes).float()
        if config.mixup:
            x, targets = augment.mixup(x, targets, config.mixup, generator)
        return x, targets

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Return the mean cross entropy, and the sum over the batch of each sample's error: 0 or 100 %."""
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits, targets, label_smoothing=self.config.label_smoothing)
        return loss, {"error": 100 * _count_errors(logits.detach(), targets.argmax(1))}

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the mean cross entropy and the error in percent on the test set."""
        loss = errors = 0.0
        for x, labels in self.data.test_batches(EVAL_BATCH_SIZE):
            logits = model(x).float()
            loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
            errors += _count_errors(logits, labels)
        count = len(self.data.test[1])
        return {"loss": loss / count, "error": 100 * errors / count}


def _count_errors(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(1) != labels).sum())


def _check_count(name: str, count: int, available: int) -> None:
    if not 0 < count <= available:
        raise DataError(f"{name} must be between 1 and the {available} images of the data set; got {count}.")
