"""Semantic segmentation: a dilated residual network with a pyramid head and an auxiliary head.

The network is that of `networks`, the loss that of `loss`. Training uses random
crops of `config.image_size` pixels, testing whole images. The metric is the mean intersection over union (mIoU) over the classes.
With `scales` or `flip_test`, the last evaluation also has the mIoU of probabilities averaged over scales and flips; with
`norm_modes`, also the metrics with batch statistics and with recalibrated running statistics (`anynorm.lab.training.norm_modes`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from anynorm.lab.models.backbone import make_backbone
from anynorm.lab.tasks.segmentation.data import SegmentationDataset, load_segmentation_cached
from anynorm.lab.tasks.segmentation.loss import pixel_accuracy, segmentation_loss
from anynorm.lab.tasks.segmentation.masks import Sample
from anynorm.lab.tasks.segmentation.metrics import class_iou, confusion_matrix, count_pixels, segmentation_evaluation
from anynorm.lab.tasks.segmentation.networks import SegmentationNetwork
from anynorm.lab.tasks.segmentation.options import SegmentationOptions
from anynorm.lab.tasks.segmentation.pictures import encode_predictions
from anynorm.lab.tasks.segmentation.prediction import average_probabilities, predict_logits
from anynorm.lab.tasks.segmentation.transforms import CentralSquares, RandomScaleCrop, read_batches, size_batches
from anynorm.lab.training.clipping import clipping_optimizer
from anynorm.lab.training.comparison_defaults import ComparisonDefaults
from anynorm.lab.training.config import Config
from anynorm.lab.training.distributed import Processes
from anynorm.lab.training.evaluation import Evaluation
from anynorm.lab.training.images import choose_samples, count_tests
from anynorm.lab.training.norm_modes import evaluate_norm_modes
from anynorm.lab.training.pretrained_backbone import set_up_network
from anynorm.lab.training.schedules import Polynomial
from anynorm.lab.training.task import Metric, Metrics, Optimizers, Task

EVAL_BATCH_SIZE = 64
EVAL_PIXELS = 1 << 20
"""Maximum number of test images and of their pixels per forward pass."""
NUM_PICTURES = 4
Samples = Sequence[Sample]


class Segmentation(Task[SegmentationOptions]):
    """Semantic segmentation with a PSP or ASPP head.

    Args:
        config: the run. `config.data` is a name of `anynorm.lab.tasks.segmentation.data`, `config.model` a residual network of
            `anynorm.lab.models`, `config.image_size` the side of training crops. `config.norm` may have the parts backbone,
            head and aux_head.

    Raises:
        DataError: if the data set or the weights cannot be read, or do not fit.
        SpecError: if the network does not have a submodule that an option names.
    """

    metric: ClassVar[Metric] = Metric("mIoU", "%", higher_is_better=True)
    comparison_defaults: ClassVar[ComparisonDefaults] = ComparisonDefaults(
        norms=("bn", "gn:8", "sn"),
        batch_sizes=(2, 8),
        base=Config(
            model="resnet10",
            epochs=4,
            lr=0.2,
            data="shapes",
            width=0.5,
            weight_decay=1e-4,
            schedule=Polynomial(0.9),
            num_evals=2,
            options=SegmentationOptions(dropout=0.0, backbone_image_size=64),
        ),
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        options = self.options
        self.data = load_segmentation_data(config)
        self.crop = RandomScaleCrop(config.image_size, options.resize, options.min_scale, options.max_scale, config.flip)
        chosen = choose_samples(config, len(self.data.train))
        self.train_indices = torch.arange(len(self.data.train)) if chosen is None else chosen
        self.num_tests = count_tests(config, len(self.data.test))
        self._iou: Tensor | None = None
        torch.manual_seed(config.seed)
        backbone = make_backbone(config.model, 3, config.width, options.backbone_image_size)
        network = SegmentationNetwork(backbone, self.data.num_classes, options.head, options.dropout)
        self.model = set_up_network(network, config, options, lambda count: self._training_crops(range(count))[0])

    @classmethod
    def prepare(cls, config: Config) -> None:
        """Load the data set."""
        load_segmentation_data(config)

    # Training -----------------------------------------------------------------------------------------------------------------

    @property
    def num_samples(self) -> int:
        """The number of training images."""
        return len(self.train_indices)

    def batch(self, indices: Tensor, generator: torch.Generator) -> Sample:
        """Return random crops (n, 3, image_size, image_size) and their labels (n, image_size, image_size)."""
        samples = (self.data.train[index] for index in self.train_indices[indices].tolist())
        images, labels = zip(*(self.crop(self.data, sample, generator) for sample in samples), strict=True)
        return torch.stack(images), torch.stack(labels)

    def loss(self, batch: Sample) -> Metrics:
        """Return the sum of both losses, and the pixel accuracy in percent."""
        x, labels = batch
        logits = self.model(x)
        loss = segmentation_loss(logits, labels, self.options.aux_weight, self.config.label_smoothing)
        return {"loss": loss, "pixel accuracy": pixel_accuracy(logits[0], labels)}

    def configure_optimizers(self) -> torch.optim.Optimizer | Optimizers:
        """Return the optimizer, with gradient clipping if `clip_grad_norm` is set."""
        limit = self.options.clip_grad_norm
        if not limit:
            return super().configure_optimizers()
        return clipping_optimizer(self.config, [each for each in self.parameters() if each.requires_grad], limit)

    # Evaluation ---------------------------------------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, float]:
        """Return mIoU and pixel accuracy of the test images; after the last step also those of the options."""
        counts = self.count_pixels(EVAL_BATCH_SIZE)
        self._iou = class_iou(counts.sum(0))
        evaluation = segmentation_evaluation(counts)
        if self.is_trained and (self.options.scales or self.options.flip_test):
            averaged = segmentation_evaluation(self.count_pixels(EVAL_BATCH_SIZE, self.options.scales or (1.0,)))
            evaluation |= averaged.only("mIoU").with_suffix(", multi-scale")
        if self.is_trained and self.options.norm_modes:
            evaluation |= evaluate_norm_modes(self.model, self._evaluate_like_training, self._recalibration_batches())
        return self.keep_items(evaluation)

    def count_pixels(self, batch_size: int, scales: Sequence[float] = ()) -> Tensor:
        """Return the numbers of pixels of each test image, (n, 3, num_classes); the images are divided among the processes.

        Args:
            batch_size: largest number of images per forward pass.
            scales: scales over which probabilities are averaged, also over flips with `flip_test`; empty for a single prediction.
        """
        num_classes = self.data.num_classes
        counts = torch.zeros(self.num_tests, 3, num_classes, dtype=torch.int64)
        for indices, (x, labels) in self._indexed_batches(batch_size, self.processes):
            if scales:
                scores = average_probabilities(self.model, x, labels.shape[-2:], scales, flip=self.options.flip_test)
            else:
                scores = predict_logits(self.model, x, labels.shape[-2:])
            for index, image_labels, predictions in zip(indices, labels, scores.argmax(1), strict=True):
                counts[index] = count_pixels(confusion_matrix(image_labels, predictions, num_classes)).cpu()
        return self.processes.sum_tensor(counts)

    def _evaluate_like_training(self) -> Evaluation:
        """Return the metrics with the batch size of training, because norms may use batch statistics."""
        return segmentation_evaluation(self.count_pixels(self.config.batch_size))

    def _recalibration_batches(self) -> Iterator[Tensor]:
        """Yield random crops of training images, the same in every call."""
        count, size = min(self.options.recalibration_images, self.num_samples), self.config.batch_size
        for start in range(0, count, size):
            yield self.to_device(self._training_crops(range(start, min(start + size, count))))[0]

    def _training_crops(self, indices: range) -> Sample:
        return self.batch(torch.tensor(indices), torch.Generator().manual_seed(indices.start))

    def eval_batches(self, batch_size: int) -> Iterator[Sample]:
        """Return standardized test images and their labels."""
        return (batch for _, batch in self._indexed_batches(batch_size, Processes()))

    def _indexed_batches(self, batch_size: int, processes: Processes) -> Iterator[tuple[list[int], Sample]]:
        """Yield the test images of this process with their indices, in batches of one size."""
        tests = self.test_samples
        batches = size_batches(tests, batch_size, EVAL_PIXELS)[processes.rank :: processes.count]
        for indices, batch in zip(batches, read_batches(self.data, tests, batches, self.options.resize), strict=True):
            yield indices, self.to_device(batch)

    @property
    def test_samples(self) -> Samples:
        """The test images of the run, with labels."""
        tests = self.data.test
        tests = tests if self.num_tests == len(tests) else tests[: self.num_tests]
        return tests if self.options.whole_images else CentralSquares(tests, self.config.image_size)

    def predict(self, image: Tensor) -> Tensor:
        """Return the class of each pixel, (h, w), of a uint8 image (3, h, w)."""
        batches = read_batches(self.data, [(image, torch.zeros(image.shape[1:]))], [[0]], self.options.resize)
        x = self.to_device(next(batches)[0])
        return predict_logits(self.model, x, image.shape[1:]).argmax(1)[0].cpu()

    def artifacts(self) -> dict[str, bytes]:
        """Return a picture of some test images, their labels and their predictions, and the IoU of each class."""
        shown = [self.test_samples[index] for index in range(min(NUM_PICTURES, self.num_tests))]
        predictions = [self.predict(image) for image, _ in shown]
        files = {"predictions.png": encode_predictions(shown, predictions, self.data.num_classes)}
        if self._iou is not None:
            values = [None if math.isnan(value) else round(value, 4) for value in self._iou.tolist()]  # NaN: no such pixel
            files["class-iou.json"] = json.dumps(dict(zip(self.data.class_names, values, strict=True)), indent=1).encode()
        return files


def load_segmentation_data(config: Config) -> SegmentationDataset:
    """Return the data set of a run, loaded once per process."""
    return load_segmentation_cached(config.data, config.source_hash)
