"""The base class of image classification: cross entropy on augmented images, error rate in percent on the test set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anynorm.errors import AnynormError, DataError
from anynorm.lab.data import ImageDataset, StreamedDataset, augment
from anynorm.lab.models import build_model
from anynorm.lab.models.initialization import initialize_he
from anynorm.lab.training.config import Config
from anynorm.lab.training.distributed import Processes
from anynorm.lab.training.evaluation import Evaluation
from anynorm.lab.training.images import Batch, load_images, make_images
from anynorm.lab.training.items import ItemValues
from anynorm.lab.training.task import Metric, Metrics, Task, TaskOptions_co

EVAL_BATCH_SIZE = 500
"""Maximum number of test images per forward pass."""
EVAL_PIXELS = 500 * 64 * 64
TINY = 512
"""Samples × height × width up to which ResNets train faster without oneDNN: in 0.5 of the time at 128, 0.6 to 0.8 at 512, 1.0 at
2048 with 8 samples and 3.0 with 32. Grouped convolutions are 2 to 7 times slower without it."""


class Classifier(Task[TaskOptions_co]):
    """The base class of tasks that train a classifier of images; its options are those of the subclass.

    Args:
        config: the run.
        data: all images; None for those of `config.data`.

    Raises:
        DataError: if the data set has fewer images than the run takes.
    """

    metric: ClassVar[Metric] = Metric("error", "%")
    has_validation: ClassVar[bool] = True

    def __init__(self, config: Config, data: ImageDataset | StreamedDataset | None = None) -> None:
        super().__init__(config)
        self.images = make_images(load_images(config) if data is None else data, config)
        torch.manual_seed(config.seed)
        self.model = self.make_model()

    def make_model(self) -> nn.Module:
        """Return the untrained network with the norms of the run."""
        model = build_model(self.config.model, self.data.shape, self.config.width)
        return self.apply_norms(initialize_he(model) if self.config.initialization == "he" else model)

    @classmethod
    def prepare(cls, config: Config) -> None:
        """Load the data set."""
        load_images(config)

    @property
    def data(self) -> Any:
        """The data set, an `ImageDataset` or a `StreamedDataset`, reduced to the images of the run."""
        return self.images.data

    @property
    def num_samples(self) -> int:
        """The number of training images."""
        return len(self.images)

    @property
    def has_tiny_inputs(self) -> bool:
        """Whether a batch has at most `TINY` positions, and no convolution has groups."""
        grouped = any(module.groups > 1 for module in self.model.modules() if isinstance(module, nn.Conv2d))
        return not grouped and self.samples_per_pass * self.data.shape.height * self.data.shape.width <= TINY

    @property
    def samples_per_pass(self) -> int:
        """The number of samples per forward pass in training."""
        return self.config.batch_size

    def training_batch(self, step: int, micro_batch: int = 0) -> Batch:
        """Return the augmented images and the labels (class probabilities with mixup) of one micro-batch of a step."""
        batch = self.images.batch(self.sampler, step, micro_batch, num_workers=self.num_workers)
        images, labels = self.to_device(batch)
        return self.augment(self.data.standardize(images), labels, self.sampler.generator(step, micro_batch))

    def step_batch(self, step: int) -> Batch:
        """Return the batches of all micro-batches of a step, one after the other; without mixup."""
        micro_batches = range(self.micro_batches_per_step)
        batches = [self.images.batch(self.sampler, step, each, num_workers=self.num_workers) for each in micro_batches]
        images, labels = self.to_device((torch.cat([x for x, _ in batches]), torch.cat([targets for _, targets in batches])))
        return self.augment(self.data.standardize(images), labels, [self.sampler.generator(step, each) for each in micro_batches])

    def augment(self, x: Tensor, targets: Tensor, generator: augment.Generators) -> Batch:
        """Augment standardized images: crop, flip, cutout, mixup, in this order."""
        config = self.config
        if config.crop:
            x = augment.random_crop(x, config.crop, generator)
        if config.flip:
            x = augment.random_flip(x, generator)
        if config.cutout:
            x = augment.cutout(x, config.cutout, generator)
        if config.mixup:
            assert isinstance(generator, torch.Generator)  # images are mixed within one micro-batch, see `step_batch`
            one_hot = nn.functional.one_hot(targets, self.data.num_classes).float()
            return augment.mixup(x, one_hot, config.mixup, generator)
        return x, targets

    def loss(self, batch: Any) -> Metrics:
        """Return the mean cross entropy and the error in percent."""
        x, targets = batch
        return self.metrics(self.model(x), targets)

    def metrics(self, logits: Tensor, targets: Tensor) -> Metrics:
        """Return the mean cross entropy of logits and their error in percent; targets are labels or class probabilities."""
        loss = nn.functional.cross_entropy(logits, targets, label_smoothing=self.config.label_smoothing)
        labels = targets if targets.dim() == 1 else targets.argmax(1)
        return {"loss": loss, "error": 100 * _is_wrong(logits.detach(), labels).float().mean()}

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the test set."""
        return self.keep_items(self.evaluation())

    def evaluation(self) -> Evaluation:
        """Return the metrics of the test set, with the values of its images."""
        return self.evaluate_clean()

    def evaluate_clean(self) -> Evaluation:
        """Return the mean cross entropy and the error in percent on the test set, which is divided among the processes."""
        parts: dict[str, list[Tensor]] = {"loss": [], "error": []}
        for x, labels in self._test_batches(self._eval_batch_size(), self.processes):
            logits = self.model(x).float()
            parts["loss"].append(nn.functional.cross_entropy(logits, labels, reduction="none"))
            parts["error"].append(~_is_wrong(logits, labels))
        items: dict[str, ItemValues] = {name: torch.cat(values).tolist() for name, values in parts.items() if values}
        losses, hits = items.get("loss", ()), items.get("error", ())
        loss, num_hits = self.processes.sum([sum(losses), float(sum(hits))])
        count = self.images.num_tests
        metrics = {"loss": loss / count, "error": 100 * (count - num_hits) / count}
        return Evaluation(metrics, items if self.processes.count == 1 else {})

    def eval_batches(self, batch_size: int) -> Iterator[Batch]:
        """Return standardized test images and their labels, in order."""
        return self._test_batches(batch_size, Processes())

    def _test_batches(self, batch_size: int, processes: Processes) -> Iterator[Batch]:
        for batch in self.images.test_batches(batch_size, self.num_workers, processes):
            yield self.to_device(batch)

    def close(self) -> None:
        """Stop the worker processes that decode streamed images."""
        self.images.close()

    def check(self) -> None:
        """Raise DataError if the model fails on the images or does not return one logit per class."""
        model = self.config.model
        x, _ = Classifier.training_batch(self, 0)
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
        pixels: int = self.data.shape.height * self.data.shape.width
        return max(1, min(EVAL_BATCH_SIZE, EVAL_PIXELS // pixels))


def _is_wrong(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.argmax(1) != labels
