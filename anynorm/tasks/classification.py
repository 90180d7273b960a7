"""Image classification: cross entropy on augmented images, error rate in percent on the test set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from anynorm.data import ImageDataset, augment, load_cached
from anynorm.errors import AnynormError, DataError
from anynorm.models import build_model
from anynorm.training.config import Config
from anynorm.training.task import Metric, Metrics, Task

EVAL_BATCH_SIZE = 500
"""Test images per forward pass; at most, for large images."""
EVAL_PIXELS = 500 * 64 * 64


class Classification(Task):
    """Classification of the images of a data set.

    Args:
        config: the run.
        data: all images; None for those of `config.data`.

    Raises:
        DataError: if the data set has fewer images than the run takes.
    """

    metric: ClassVar[Metric] = Metric("error", "%")

    def __init__(self, config: Config, data: ImageDataset | None = None) -> None:
        super().__init__(config)
        self.data = _load(config) if data is None else data
        self.images, self.labels = self.data.train
        if config.num_train is not None:
            _check_count("num_train", config.num_train, len(self.images))
            generator = torch.Generator().manual_seed(config.seed)
            chosen = torch.randperm(len(self.images), generator=generator)[: config.num_train]
            self.images, self.labels = self.images[chosen], self.labels[chosen]
        if config.num_test is not None:
            images, labels = self.data.test
            _check_count("num_test", config.num_test, len(images))
            self.data = replace(self.data, test=(images[: config.num_test], labels[: config.num_test]))
        torch.manual_seed(config.seed)
        self.model = self.apply_norms(build_model(config.model, self.data.shape, config.width))

    @classmethod
    def prepare(cls, config: Config) -> None:
        """Load the data set."""
        _load(config)

    @property
    def num_samples(self) -> int:
        """The number of training images."""
        return len(self.images)

    def batch(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return augmented images and labels (class probabilities with mixup): crop, flip, cutout, mixup, in this order."""
        config = self.config
        x, targets = self.to_device((self.images[indices], self.labels[indices]))
        x = self.data.standardize(x)
        if config.crop:
            x = augment.random_crop(x, config.crop, generator)
        if config.flip:
            x = augment.random_flip(x, generator)
        if config.cutout:
            x = augment.cutout(x, config.cutout, generator)
        if config.mixup:
            one_hot = nn.functional.one_hot(targets, self.data.num_classes).float()
            return augment.mixup(x, one_hot, config.mixup, generator)
        return x, targets

    def loss(self, batch: tuple[Tensor, Tensor]) -> Metrics:
        """Return the mean cross entropy and the error in percent."""
        x, targets = batch
        logits = self.model(x)
        loss = nn.functional.cross_entropy(logits, targets, label_smoothing=self.config.label_smoothing)
        labels = targets if targets.dim() == 1 else targets.argmax(1)
        return {"loss": loss, "error": 100 * _is_wrong(logits.detach(), labels).float().mean()}

    def evaluate(self) -> dict[str, float]:
        """Return the mean cross entropy and the error in percent on the test set, which processes share."""
        losses, errors = [], []
        for number, (x, labels) in enumerate(self.eval_batches(self._eval_batch_size())):
            if number % self.processes.count != self.processes.rank:
                continue
            logits = self.model(x).float()
            losses.append(nn.functional.cross_entropy(logits, labels, reduction="sum"))
            errors.append(_is_wrong(logits, labels).sum())
        sums = [sum(torch.stack(values).tolist()) if values else 0.0 for values in (losses, errors)]
        loss, num_wrong = self.processes.sum(sums)
        count = len(self.data.test[1])
        return {"loss": loss / count, "error": 100 * num_wrong / count}

    def eval_batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Return standardized test images and their labels, in order."""
        for x, labels in self.data.test_batches(batch_size):
            yield self.to_device((x, labels))

    def check(self) -> None:
        """Raise DataError if the model fails on the images or does not return one logit per class."""
        model = self.config.model
        x, _ = self.training_batch(0)
        try:
            with torch.no_grad():
                logits = self.model.eval()(x)
        except AnynormError:
            raise
        except Exception as error:  # any error of a user's model
            raise DataError(f"{model} fails on images of {self.config.data}: {type(error).__name__}: {error}.") from error
        expected = (len(x), self.data.num_classes)
        if not isinstance(logits, Tensor) or logits.shape != expected:
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise DataError(f"{model} must return logits of shape {expected} for {len(x)} images; got {got}.")

    def _eval_batch_size(self) -> int:
        shape = self.data.shape
        return max(1, min(EVAL_BATCH_SIZE, EVAL_PIXELS // (shape.height * shape.width)))


def _load(config: Config) -> ImageDataset:
    return load_cached(config.data, config.image_size, config.source_hash, config.skip_unreadable)


def _is_wrong(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.argmax(1) != labels


def _check_count(name: str, count: int, available: int) -> None:
    if not 0 < count <= available:
        raise DataError(f"{name} must be between 1 and the {available} images of the data set; got {count}.")
