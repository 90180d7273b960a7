"""Object detection and instance segmentation: Faster R-CNN and Mask R-CNN, average precision on the test set.

Training uses random crops of `config.image_size` pixels, with padding of smaller images (`anynorm.lab.tasks.detection.crops`).
Testing uses central crops of the same size, or whole images with the option `whole_images`. With the option `short_side`, both
use whole images, scaled as in the published COCO settings `short_side=800` and `max_side=1333` (`scaling`);
metrics are computed in the coordinates of the original images.

`config.batch_size` is the number of images per forward pass and device: 2 images on each of 4 devices are `batch_size=2` and
`grad_accum_steps=4`, or `devices=4`.

The parts of the detector are `backbone`, `fpn` and `heads` (`heads.rpn`, `heads.box`, `heads.mask`); see
`anynorm.lab.training.norm_layout` for a norm per part, such as `config.norm = "bn;heads=gn:8"`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from anynorm.io.pictures import encode_png, image_grid
from anynorm.lab.models.backbone import make_backbone
from anynorm.lab.tasks.detection.data.datasets import DetectionDataset, load_detection_cached
from anynorm.lab.tasks.detection.images import Images, make_object_images
from anynorm.lab.tasks.detection.metrics import coco_evaluation, coco_metrics, encode_detections
from anynorm.lab.tasks.detection.networks.build import load_weights, make_detector
from anynorm.lab.tasks.detection.networks.detector import stack_images
from anynorm.lab.tasks.detection.options import DetectionOptions
from anynorm.lab.tasks.detection.pictures import draw_instances
from anynorm.lab.training.clipping import clipping_optimizer
from anynorm.lab.training.comparison_defaults import ComparisonDefaults
from anynorm.lab.training.config import Config
from anynorm.lab.training.evaluation import Evaluation
from anynorm.lab.training.norm_modes import evaluate_norm_modes
from anynorm.lab.training.pretrained_backbone import freeze_submodule, set_up_network
from anynorm.lab.training.schedules import Step
from anynorm.lab.training.task import Metric, Metrics, Task

EVAL_PIXELS = 16 * 128 * 128
"""Maximum number of pixels per forward pass in an evaluation."""
NUM_PICTURES = 4
Batch = tuple[Images, list[dict[str, Tensor]]]


class Detection(Task[DetectionOptions]):
    """Object detection with Faster R-CNN or Mask R-CNN.

    Args:
        config: the run. `config.data` is a name of `data.datasets`, `config.model` a residual network, the backbone.
        data: the images; None for those of `config.data`.

    Raises:
        DataError: if the data set has fewer images than the run takes, lacks required masks, or has no test objects;
            if the weights do not fit.
        SpecError: if the detector does not have a part that an option names.
    """

    metric: ClassVar[Metric] = Metric("AP", "%", higher_is_better=True)
    comparison_defaults: ClassVar[ComparisonDefaults] = ComparisonDefaults(
        norms=("bn", "gn:8", "sn", "bn;heads=gn:8"),
        batch_sizes=(2,),
        lr_scaling="none",
        base=Config(
            model="resnet10",
            epochs=10,
            lr=3e-3,
            data="ellipses",
            width=0.5,
            image_size=64,
            grad_accum_steps=4,
            optimizer="adamw",
            schedule=Step((2 / 3, 8 / 9)),
            warmup_epochs=1.0,
            num_evals=2,
        ),
    )

    def __init__(self, config: Config, data: DetectionDataset | None = None) -> None:
        super().__init__(config)
        self.data = load_detection_cached(config.data, config.source_hash) if data is None else data
        self.images = make_object_images(self.data, config, self.options)
        torch.manual_seed(config.seed)
        self.model = self.make_model()

    @classmethod
    def prepare(cls, config: Config) -> None:
        """Load the data set."""
        load_detection_cached(config.data, config.source_hash)

    def make_model(self) -> nn.Module:
        """Return the detector with the norms of the run, and with pretrained weights of the backbone if the run has any."""
        backbone = make_backbone(self.config.model, 3, self.config.width, self.options.backbone_image_size)
        network = make_detector(backbone, len(self.data.class_names), self.options)
        model = set_up_network(network, self.config, self.options, self._calibration_images, load_weights)
        if self.options.frozen_submodule == "backbone" and not self.options.fpn:  # its last stage is in the box head
            freeze_submodule(model, "heads.box.body", batch_free=self.options.freeze_batch_free)
        return model

    def _calibration_images(self, count: int) -> Tensor:
        return torch.cat(list(self.images.training_crops(count, self.config.batch_size)))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer of the parameters that are not frozen."""
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return clipping_optimizer(self.config, parameters, self.options.clip_grad_norm)

    # Training -----------------------------------------------------------------------------------------------------------------

    @property
    def num_samples(self) -> int:
        """The number of training images."""
        return len(self.images)

    def batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Return random crops of training images, or whole scaled images, standardized, and their objects."""
        return self.images.training_batch(indices, generator)

    def loss(self, batch: Batch) -> Metrics:
        """Return the losses of a batch, and their sum."""
        losses: Metrics = self.model(*batch)
        return {"loss": torch.stack(list(losses.values())).sum(), **{name: value.detach() for name, value in losses.items()}}

    # Evaluation ---------------------------------------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, float]:
        """Return COCO's metrics of boxes and masks on the test images, after the last step also in other modes of the norms."""
        evaluation = self.evaluate_images(self._eval_batch_size)
        if self.options.norm_modes and self.is_trained:
            # large batches: their statistics are nearly those that the norms will have in inference
            crops = self.images.training_crops(self.options.recalibration_images, self._eval_batch_size)
            evaluate = partial(self.evaluate_images, self.config.batch_size)
            evaluation |= evaluate_norm_modes(self.model, evaluate, map(self.to_device, crops))
        return self.keep_items(evaluation)

    def evaluate_images(self, batch_size: int) -> Evaluation:
        """Return COCO's metrics in percent; the test images are divided among the processes.

        Args:
            batch_size: number of images per forward pass.
        """
        own = {
            index: encode_detections(self.images.restore(index, detections))
            for indices, images in self.images.test_batches(batch_size, self.processes)
            for index, detections in zip(indices, self.model(self.to_device(images)), strict=True)
        }
        by_index = {index: each for part in self.processes.gather(own) for index, each in part.items()}
        objects, num_classes = self.images.test_objects, len(self.data.class_names)
        detections = [by_index[index] for index in range(self.images.num_tests)]
        evaluation = Evaluation()
        for prefix, masks in (("", False), ("mask ", True)) if self.options.masks else (("", False),):
            if self.is_trained:
                part = coco_evaluation(objects, detections, num_classes, masks=masks)
            else:
                part = Evaluation(coco_metrics(objects, detections, num_classes, masks=masks))
            evaluation |= part.with_prefix(prefix)
        return evaluation

    def eval_batches(self, batch_size: int) -> Iterator[Tensor]:
        """Return standardized central crops of the test images, which are scaled with the option `short_side`.

        Batches are smaller than `batch_size` if the images are large.
        """
        return map(self.to_device, self.images.test_crops(min(batch_size, self._eval_batch_size)))

    @property
    def _eval_batch_size(self) -> int:
        return max(1, EVAL_PIXELS // self.images.size**2)

    def artifacts(self) -> dict[str, bytes]:
        """Return a picture of test images: objects in the first row, detections in the second."""
        examples = [self.images.example(index) for index in range(min(NUM_PICTURES, self.images.num_tests))]
        detections = self.model(self.to_device([x for _, x, _ in examples]))
        restored = [self.images.restore(index, each) for index, each in enumerate(detections)]
        pairs: list[tuple[Tensor, Mapping[str, Tensor]]] = [(pixels, target) for pixels, _, target in examples]
        pairs += [(pixels, each) for (pixels, _, _), each in zip(examples, restored, strict=True)]
        pictures = [draw_instances(pixels, instances, len(self.data.class_names)) for pixels, instances in pairs]
        images, _ = stack_images(pictures, stride=1)  # whole images have different sizes
        return {"detections.png": encode_png(image_grid(images, columns=len(examples), padding=4))}
