"""The images with objects of a run: random crops of training images, test images, and their objects for COCO's metrics."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from anynorm.data.detection import DetectionDataset
from anynorm.errors import DataError
from anynorm.tasks import object_crops as crops
from anynorm.tasks.coco_metrics import Annotations, encode_objects
from anynorm.tasks.images import choose_samples, count_tests
from anynorm.training.config import Config
from anynorm.training.distributed import Processes

Target = dict[str, Tensor]


class ObjectImages:
    """The images of a run; their number is that of the training images.

    Args:
        data: all images.
        config: the run.
        masks: whether objects have masks.
        whole: whether test images are whole, instead of central crops.

    Raises:
        DataError: if the data set has fewer images than the run takes, or no masks where masks are asked for.
    """

    def __init__(self, data: DetectionDataset, config: Config, *, masks: bool, whole: bool) -> None:
        if masks and not data.has_masks:
            raise DataError(f"the option masks needs a data set with masks; {config.data} has boxes alone.")
        chosen = choose_samples(config, len(data.train))
        self.data, self.config, self.masks, self.whole, self.size = data, config, masks, whole, config.image_size
        self.train_numbers = list(range(len(data.train))) if chosen is None else chosen.tolist()
        self.num_tests = count_tests(config, len(data.test))

    def __len__(self) -> int:
        return len(self.train_numbers)

    def training_batch(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, list[Target]]:
        """Return random crops of training images, standardized, and their objects."""
        images, targets = [], []
        for index in indices.tolist():
            image, objects = self.data.train[self.train_numbers[index]]
            window = crops.random_window(image, self.size, generator)
            x = crops.pad_image(crops.crop_image(image, window, self.data), self.size)
            target = self._pad_masks(crops.without_crowds(crops.crop_objects(objects, window, with_masks=self.masks)))
            if self.config.flip and torch.rand((), generator=generator) < 0.5:
                x, target = crops.flip(x, target)
            images.append(x)
            targets.append(target)
        return torch.stack(images), targets

    def training_crops(self, count: int, batch_size: int) -> Iterator[Tensor]:
        """Yield batches of central crops of the first training images, standardized."""
        for start in range(0, min(count, len(self)), batch_size):
            numbers = self.train_numbers[start : min(start + batch_size, count)]
            yield torch.stack([self._central_crop(self.data.train[number][0]) for number in numbers])

    def test_crops(self, batch_size: int) -> Iterator[Tensor]:
        """Yield batches of central crops of the test images, standardized."""
        for start in range(0, self.num_tests, batch_size):
            numbers = range(start, min(start + batch_size, self.num_tests))
            yield torch.stack([self._central_crop(self.data.test[number][0]) for number in numbers])

    def test_batches(self, batch_size: int, processes: Processes) -> Iterator[tuple[list[int], list[Tensor]]]:
        """Yield numbers of test images, and the images, standardized: those of this process."""
        for start in range(processes.rank * batch_size, self.num_tests, processes.count * batch_size):
            numbers = list(range(start, min(start + batch_size, self.num_tests)))
            images = [self.data.test[number][0] for number in numbers]
            yield numbers, [crops.crop_image(image, self._test_window(image), self.data) for image in images]

    @cached_property
    def test_objects(self) -> list[Annotations]:
        """The objects of each test image.

        Raises:
            DataError: if there are none.
        """
        result = []
        for number in range(self.num_tests):
            image, objects = self.data.test[number]
            result.append(encode_objects(crops.crop_objects(objects, self._test_window(image), with_masks=self.masks)))
        if not any(entry["iscrowd"] == 0 for entries in result for entry in entries):
            raise DataError(
                f"average precision needs test objects; the {self.num_tests} test images of {self.config.data} have none."
            )
        return result

    def example(self, number: int) -> tuple[Tensor, Tensor, Target]:
        """Return the central crop of a test image as uint8 and standardized, both (3, size, size), and its objects."""
        image, objects = self.data.test[number]
        window = crops.central_window(image, self.size)
        top, left, height, width = window
        pixels = crops.pad_image(image[:, top : top + height, left : left + width], self.size)
        target = self._pad_masks(crops.crop_objects(objects, window, with_masks=self.masks))
        return pixels, self._central_crop(image), target

    def _pad_masks(self, target: Target) -> Target:
        return {**target, "masks": crops.pad_image(target["masks"], self.size)} if "masks" in target else target

    def _test_window(self, image: Tensor) -> crops.Window:
        return crops.whole_window(image) if self.whole else crops.central_window(image, self.size)

    def _central_crop(self, image: Tensor) -> Tensor:
        return crops.pad_image(crops.crop_image(image, crops.central_window(image, self.size), self.data), self.size)
