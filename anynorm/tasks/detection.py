"""Object detection and instance segmentation: Faster R-CNN and Mask R-CNN, average precision on the test set.

A step trains on random crops of `config.image_size` pixels; an image that is smaller is padded (`object_crops`). The test images
are their central crops of the same size, or whole images with the option `whole_images`. `config.batch_size` is the number of
images per forward pass and device: 2 images on each of 4 devices are `batch_size=2` and `grad_accum_steps=4`, or `devices=4`.

The parts of the detector are `backbone`, `fpn` and `heads` (`heads.rpn`, `heads.box`, `heads.mask`); see
`anynorm.training.norm_layout` for a norm per part, such as `config.norm = "bn;heads=gn:8"`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anynorm.data.detection import DetectionDataset, load_detection_cached
from anynorm.data.download import find_path
from anynorm.errors import DataError
from anynorm.io.checkpoints import read_state_dict
from anynorm.io.pictures import encode_png, image_grid
from anynorm.tasks import object_crops as crops
from anynorm.tasks.clipping import clipping_optimizer
from anynorm.tasks.coco_metrics import Annotations, coco_metrics, encode_detections, encode_objects
from anynorm.tasks.detection_networks import freeze_part, load_weights, make_network, replace_norms
from anynorm.tasks.detection_pictures import draw_instances
from anynorm.tasks.images import choose_samples, count_tests
from anynorm.tasks.norm_modes import evaluate_norm_modes
from anynorm.training.config import Config
from anynorm.training.distributed import Processes
from anynorm.training.task import Metric, Metrics, Step, Task

EVAL_PIXELS = 16 * 128 * 128
"""Maximum number of pixels per forward pass in an evaluation."""
NUM_PICTURES = 4
Batch = tuple[Tensor, list[dict[str, Tensor]]]


class Detection(Task):
    """Detection of the objects of a data set of `anynorm.data.detection`.

    Args:
        config: the run. `config.model` is a residual network, the backbone.
        data: the images; None for those of `config.data`.

    Attributes:
        default_options: those of the detector, see `anynorm.models.detection.build.DetectorSettings`; of these, masks is whether
            it is Mask R-CNN, fpn whether it has a feature pyramid, and anchor_sizes and anchor_ratios are comma-separated.
            backbone_image_size: side of the images of the classifier that is the backbone, which decides its stem.
            weights: path of a classifier's weights (model.pt of a run) for the backbone, "" for none; its norms must be those of
            the backbone or, with fit_images, BatchNorm: the new norms of the backbone are then fitted to the old ones on as
            many training images. frozen: a part whose norms are frozen, such as "backbone", "" for none. clip: largest norm of
            the gradient, 0 for no limit. norm_modes: whether the last evaluation is repeated with batch statistics, and with
            running statistics estimated again on recalibration_images training images (`norm_modes`). whole_images: whether
            whole test images are evaluated instead of their central crops.

    Raises:
        DataError: if the data set has fewer images than the run takes, no masks where masks are asked for, or no test objects;
            if the weights do not fit.
        SpecError: if an option cannot be read, or the detector has no such part.
    """

    metric: ClassVar[Metric] = Metric("AP", "%", higher_is_better=True)
    default_options: ClassVar[Mapping[str, Any]] = {
        "masks": False,
        "fpn": True,
        "fpn_channels": 32,
        "fpn_stages": 3,
        "anchor_sizes": "8,16,32,64",
        "anchor_ratios": "0.5,1,2",
        "num_candidates": 200,
        "num_proposals": 100,
        "rpn_samples": 128,
        "num_samples": 64,
        "positive_fraction": 0.5,
        "box_convs": 1,
        "box_features": 128,
        "mask_convs": 2,
        "score_threshold": 0.05,
        "max_detections": 100,
        "backbone_image_size": 64,
        "weights": "",
        "frozen": "",
        "fit_images": 0,
        "clip": 5.0,
        "norm_modes": False,
        "recalibration_images": 64,
        "whole_images": False,
    }
    comparison_defaults: ClassVar[Mapping[str, Any]] = {
        "norms": ("bn", "gn:8", "sn", "bn;heads=gn:8"),
        "batch_sizes": (2,),
        "lr_scaling": "none",
        "data": "cells",
        "model": "resnet10",
        "width": 0.5,
        "image_size": 64,
        "grad_accum_steps": 4,
        "optimizer": "adamw",
        "lr": 3e-3,
        "schedule": "step-67-89",
        "epochs": 12,
        "warmup_epochs": 1.0,
        "num_evals": 2,
    }

    def __init__(self, config: Config, data: DetectionDataset | None = None) -> None:
        super().__init__(config)
        self.data = load_detection_cached(config.data, config.source_hash) if data is None else data
        if self.options["masks"] and not self.data.has_masks:
            raise DataError(f"the option masks needs a data set with masks; {config.data} has boxes alone.")
        chosen = choose_samples(config, len(self.data.train))
        self.train_indices = list(range(len(self.data.train))) if chosen is None else chosen.tolist()
        self.num_tests = count_tests(config, len(self.data.test))
        self._num_steps: int | None = None
        torch.manual_seed(config.seed)
        self.model = self.make_model()

    @classmethod
    def prepare(cls, config: Config) -> None:
        """Load the data set."""
        load_detection_cached(config.data, config.source_hash)

    def make_model(self) -> nn.Module:
        """Return the detector with the norms of the run, and the weights of its backbone if the run has some."""
        options, fit_images = self.options, int(self.options["fit_images"])
        network = make_network(self.config, len(self.data.class_names), options)
        weights = read_state_dict(Path(find_path(options["weights"]))) if options["weights"] else None
        if weights is not None and fit_images:
            load_weights(network, weights, options["weights"])
        images = torch.cat(list(self.training_images(fit_images))) if fit_images else None
        network = replace_norms(network, self.config, images)
        if weights is not None and not fit_images:
            load_weights(network, weights, options["weights"])
        if options["frozen"]:
            freeze_part(network, options["frozen"])
        return network

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer of the parameters that are not frozen."""
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return clipping_optimizer(self.config, parameters, float(self.options["clip"]))

    # Training -----------------------------------------------------------------------------------------------------------------

    @property
    def num_samples(self) -> int:
        """The number of training images."""
        return len(self.train_indices)

    def batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Return random crops of training images, standardized, and their objects."""
        images, targets = [], []
        for index in indices.tolist():
            image, objects = self.data.train[self.train_indices[index]]
            window = crops.random_window(image, self.config.image_size, generator)
            x = crops.pad_image(crops.crop_image(image, window, self.data), self.config.image_size)
            target = crops.without_crowds(crops.crop_objects(objects, window, with_masks=self.options["masks"]))
            if "masks" in target:
                target["masks"] = crops.pad_image(target["masks"], self.config.image_size)
            if self.config.flip and torch.rand((), generator=generator) < 0.5:
                x, target = crops.flip(x, target)
            images.append(x)
            targets.append(target)
        return torch.stack(images), targets

    def training_images(self, count: int) -> Iterator[Tensor]:
        """Yield batches of central crops of the first training images, standardized."""
        images = (self.data.train[index][0] for index in self.train_indices[:count])
        central = [self._central_crop(image) for image in images]
        for start in range(0, len(central), self.config.batch_size):
            yield self.to_device(torch.stack(central[start : start + self.config.batch_size]))

    def training_step(self, step: Step) -> Metrics:
        """Update the parameters once and return the metrics of the step."""
        self._num_steps = step.number + 1
        return super().training_step(step)

    def loss(self, batch: Batch) -> Metrics:
        """Return the losses of a batch, and their sum."""
        losses: Metrics = self.model(*batch)
        return {"loss": torch.stack(list(losses.values())).sum(), **{name: value.detach() for name, value in losses.items()}}

    # Evaluation ---------------------------------------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, float]:
        """Return COCO's metrics of boxes and masks on the test images, after the last step also in other modes of the norms."""
        metrics = self.test_metrics(self._eval_batch_size)
        if self.options["norm_modes"] and self.is_trained:
            batches = self.training_images(self.options["recalibration_images"])
            metrics |= evaluate_norm_modes(self.model, lambda: self.test_metrics(self.config.batch_size), batches)
        return metrics

    @property
    def is_trained(self) -> bool:
        """Whether the run has no further step."""
        if self._num_steps is None:
            return True
        return self._num_steps >= self.sampler.steps_per_epoch * (self.config.stop_epoch or self.config.epochs)

    def test_metrics(self, batch_size: int) -> dict[str, float]:
        """Return COCO's metrics in percent; processes share the images.

        Args:
            batch_size: number of images per forward pass.
        """
        own = {
            number: encode_detections(detections)
            for numbers, images in self._test_batches(batch_size, self.processes)
            for number, detections in zip(numbers, self.model(images), strict=True)
        }
        found = {number: each for part in self.processes.gather(own) for number, each in part.items()}
        detections = [found[number] for number in range(self.num_tests)]
        metrics = coco_metrics(self.test_objects, detections, len(self.data.class_names))
        if self.options["masks"]:
            of_masks = coco_metrics(self.test_objects, detections, len(self.data.class_names), masks=True)
            metrics |= {f"mask {name}": value for name, value in of_masks.items()}
        return metrics

    @cached_property
    def test_objects(self) -> list[Annotations]:
        """The objects of each test image.

        Raises:
            DataError: if there are none.
        """
        result = []
        for number in range(self.num_tests):
            image, objects = self.data.test[number]
            target = crops.crop_objects(objects, self._test_window(image), with_masks=self.options["masks"])
            result.append(encode_objects(target))
        if not any(entry["iscrowd"] == 0 for entries in result for entry in entries):
            raise DataError(
                f"average precision needs test objects; the {self.num_tests} test images of {self.config.data} have none."
            )
        return result

    def eval_batches(self, batch_size: int) -> Iterator[Tensor]:
        """Return central crops of test images, standardized; fewer than `batch_size` at a time if they are large."""
        for start in range(0, self.num_tests, min(batch_size, self._eval_batch_size)):
            numbers = range(start, min(start + self._eval_batch_size, self.num_tests))
            yield self.to_device(torch.stack([self._central_crop(self.data.test[number][0]) for number in numbers]))

    def _test_batches(self, batch_size: int, processes: Processes) -> Iterator[tuple[list[int], list[Tensor]]]:
        """Yield numbers of test images, and the images as the network takes them: those of this process."""
        for start in range(processes.rank * batch_size, self.num_tests, processes.count * batch_size):
            numbers = list(range(start, min(start + batch_size, self.num_tests)))
            images = [self.data.test[number][0] for number in numbers]
            yield numbers, self.to_device([crops.crop_image(image, self._test_window(image), self.data) for image in images])

    def _test_window(self, image: Tensor) -> crops.Window:
        return crops.whole_window(image) if self.options["whole_images"] else crops.central_window(image, self.config.image_size)

    def _central_crop(self, image: Tensor) -> Tensor:
        size = self.config.image_size
        return crops.pad_image(crops.crop_image(image, crops.central_window(image, size), self.data), size)

    @property
    def _eval_batch_size(self) -> int:
        return max(1, EVAL_PIXELS // self.config.image_size**2)

    def artifacts(self) -> dict[str, bytes]:
        """Return a picture of test images: their objects in the first row, what was detected in the second."""
        size, count = self.config.image_size, min(NUM_PICTURES, self.num_tests)
        rows: tuple[list[Tensor], list[Tensor]] = [], []
        for number in range(count):
            image, objects = self.data.test[number]
            window = crops.central_window(image, size)
            target = crops.crop_objects(objects, window, with_masks=self.options["masks"])
            (detections,) = self.model(self.to_device([crops.crop_image(image, window, self.data)]))
            pixels = image[:, window.top : window.top + window.height, window.left : window.left + window.width]
            for row, instances in zip(rows, (target, detections), strict=True):
                row.append(draw_instances(crops.pad_image(pixels, size), instances, len(self.data.class_names)))
        return {"detections.png": encode_png(image_grid(torch.stack([*rows[0], *rows[1]]), columns=count, padding=4))}
