"""The images with objects of a run: training images, test images, and their objects for COCO's metrics.

ObjectImages          random crops of training images; central crops of test images, or whole test images
ScaledObjectImages    whole images, scaled to a length of their shorter side (`anynorm.lab.tasks.detection.scaling`)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.lab.data.windows import Window, central_window, random_window, whole_window
from anynorm.lab.tasks.detection import crops, scaling
from anynorm.lab.tasks.detection.data.datasets import DetectionDataset, Objects
from anynorm.lab.tasks.detection.metrics import Annotations, encode_objects
from anynorm.lab.tasks.detection.options import DetectionOptions
from anynorm.lab.training.config import Config
from anynorm.lab.training.distributed import Processes
from anynorm.lab.training.images import choose_samples, count_tests

Target = dict[str, Tensor]
Images = Tensor | list[Tensor]
"""Images of one size (n, c, h, w), or a list of images (c, h, w)."""


class ObjectImages:
    """The images of a run as crops; `len` is the number of training images.

    Args:
        data: all images.
        config: the run.
        masks: whether objects have masks.
        whole: whether test images are whole, instead of central crops.

    Attributes:
        size: height and width of crops, in pixels.

    Raises:
        DataError: if the data set has fewer images than the run takes, or no masks where masks are asked for.
    """

    def __init__(self, data: DetectionDataset, config: Config, *, masks: bool, whole: bool) -> None:
        if masks and not data.has_masks:
            raise DataError(f"the option masks needs a data set with masks; {config.data} has boxes alone.")
        chosen = choose_samples(config, len(data.train))
        self.data, self.config, self.masks, self.whole, self.size = data, config, masks, whole, config.image_size
        self.train_indices = list(range(len(data.train))) if chosen is None else chosen.tolist()
        self.num_tests = count_tests(config, len(data.test))

    def __len__(self) -> int:
        return len(self.train_indices)

    def training_batch(self, indices: Tensor, generator: torch.Generator) -> tuple[Images, list[Target]]:
        """Return training images, standardized, possibly flipped, and their objects."""
        images, targets = [], []
        for index in indices.tolist():
            x, target = self._training_sample(*self.data.train[self.train_indices[index]], generator)
            if self.config.flip and torch.rand((), generator=generator) < 0.5:
                x, target = crops.flip(x, target)
            images.append(x)
            targets.append(target)
        return self._batch(images), targets

    def _training_sample(self, image: Tensor, objects: Objects, generator: torch.Generator) -> tuple[Tensor, Target]:
        """Return a random crop, standardized, and its objects."""
        window = random_window(image, self.size, generator)
        x = crops.pad_image(crops.crop_image(image, window, self.data), self.size)
        return x, self._pad_masks(crops.without_crowds(crops.crop_objects(objects, window, with_masks=self.masks)))

    def _batch(self, images: Sequence[Tensor]) -> Images:
        return torch.stack(list(images))

    def training_crops(self, count: int, batch_size: int) -> Iterator[Tensor]:
        """Yield batches of central crops of the first training images, standardized."""
        for start in range(0, min(count, len(self)), batch_size):
            indices = self.train_indices[start : min(start + batch_size, count)]
            yield torch.stack([self._central_crop(self.data.train[index][0]) for index in indices])

    def test_crops(self, batch_size: int) -> Iterator[Tensor]:
        """Yield batches of central crops of the test images, standardized."""
        for start in range(0, self.num_tests, batch_size):
            indices = range(start, min(start + batch_size, self.num_tests))
            yield torch.stack([self._central_crop(self.data.test[index][0]) for index in indices])

    def test_batches(self, batch_size: int, processes: Processes) -> Iterator[tuple[list[int], list[Tensor]]]:
        """Yield the batches of this process: indices of test images, and the standardized images.

        A batch has whole images of one size only, because norms with statistics per sample would include the padding.
        """
        for indices in self._test_indices(batch_size)[processes.rank :: processes.count]:
            yield indices, [self._test_input(self.data.test[index][0]) for index in indices]

    def _test_indices(self, batch_size: int) -> list[list[int]]:
        """Return the indices of the test images of each batch."""
        by_size: dict[tuple[int, int], list[int]] = {}
        for index in range(self.num_tests):
            by_size.setdefault(self.data.test.size(index) if self.whole else (self.size, self.size), []).append(index)
        batches = []
        for (height, width), indices in by_size.items():
            count = max(1, min(batch_size, batch_size * self.size**2 // (height * width)))
            batches += [indices[start : start + count] for start in range(0, len(indices), count)]
        return batches

    def _test_input(self, image: Tensor) -> Tensor:
        """Return the standardized detector input of a test image."""
        return crops.crop_image(image, self._test_window(image), self.data)

    def restore(self, index: int, detections: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the detections of a test image in the pixels of `test_objects`: unchanged."""
        return detections

    @cached_property
    def test_objects(self) -> list[Annotations]:
        """The objects of each test image.

        Raises:
            DataError: if no test image has objects.
        """
        result = [encode_objects(self._test_target(index)) for index in range(self.num_tests)]
        if not any(entry["iscrowd"] == 0 for entries in result for entry in entries):
            raise DataError(
                f"average precision needs test objects; the {self.num_tests} test images of {self.config.data} have none."
            )
        return result

    def _test_target(self, index: int) -> Target:
        image, objects = self.data.test[index]
        return crops.crop_objects(objects, self._test_window(image), with_masks=self.masks)

    def example(self, index: int) -> tuple[Tensor, Tensor, Target]:
        """Return a test image for a picture.

        Returns:
            Its central crop as uint8 and standardized, both (3, size, size), and its objects.
        """
        image, objects = self.data.test[index]
        window = central_window(image, self.size)
        pixels = crops.pad_image(window.crop(image), self.size)
        target = self._pad_masks(crops.crop_objects(objects, window, with_masks=self.masks))
        return pixels, self._central_crop(image), target

    def _pad_masks(self, target: Target) -> Target:
        return {**target, "masks": crops.pad_image(target["masks"], self.size)} if "masks" in target else target

    def _test_window(self, image: Tensor) -> Window:
        return whole_window(image) if self.whole else central_window(image, self.size)

    def _central_crop(self, image: Tensor) -> Tensor:
        return crops.pad_image(crops.crop_image(image, central_window(image, self.size), self.data), self.size)


class ScaledObjectImages(ObjectImages):
    """The images of a run, whole and scaled to a length of their shorter side.

    A batch is a list of images of different sizes, which the detector pads. Objects and detections of test images are in the
    pixels of the original image. The crops on which norms are estimated and diagnosed (`training_crops`, `test_crops`) are the
    central squares of scaled images with `short_side` pixels.

    Args:
        data: all images.
        config: the run; its image_size is not used.
        masks: whether objects have masks.
        short_side: length of the shorter side, in pixels.
        max_side: largest length of the longer side, in pixels; the shorter side of an elongated image is then shorter.

    Raises:
        DataError: as `ObjectImages`.
    """

    def __init__(self, data: DetectionDataset, config: Config, *, masks: bool, short_side: int, max_side: int) -> None:
        super().__init__(data, config, masks=masks, whole=True)
        self.size, self.max_side = short_side, max_side

    def _training_sample(self, image: Tensor, objects: Objects, generator: torch.Generator) -> tuple[Tensor, Target]:
        target = crops.without_crowds(crops.crop_objects(objects, whole_window(image), with_masks=self.masks))
        x = self._test_input(image)
        return x, scaling.scale_objects(target, _size(image), _size(x))

    def _batch(self, images: Sequence[Tensor]) -> Images:
        return list(images)

    def _test_input(self, image: Tensor) -> Tensor:
        scaled = self._scale(image)
        return crops.crop_image(scaled, whole_window(scaled), self.data)

    def restore(self, index: int, detections: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the detections of a test image in the pixels of the original image."""
        size = self.data.test.size(index)
        return scaling.scale_detections(detections, self._scaled_size(size), size)

    def _test_target(self, index: int) -> Target:
        # COCO measures small, medium and large by masks, also for boxes
        window = Window(0, 0, *self.data.test.size(index))
        return crops.crop_objects(self.data.test.objects(index), window, with_masks=self.data.has_masks)

    def example(self, index: int) -> tuple[Tensor, Tensor, Target]:
        """Return a test image for a picture.

        Returns:
            The original image (3, h, w) as uint8, the scaled image, standardized, and the objects of the original.
        """
        image, objects = self.data.test[index]
        target = crops.crop_objects(objects, whole_window(image), with_masks=self.masks)
        return image, self._test_input(image), target

    def _central_crop(self, image: Tensor) -> Tensor:
        return super()._central_crop(self._scale(image))

    def _scale(self, image: Tensor) -> Tensor:
        return scaling.resize(image, self._scaled_size(_size(image)))

    def _scaled_size(self, size: scaling.Size) -> scaling.Size:
        return scaling.scaled_size(size, self.size, self.max_side)


def make_object_images(data: DetectionDataset, config: Config, options: DetectionOptions) -> ObjectImages:
    """Return the images of a run with the options masks, whole_images, short_side and max_side.

    Raises:
        DataError: if the data set has fewer images than the run takes, or no masks where masks are asked for.
    """
    if options.short_side == 0:
        return ObjectImages(data, config, masks=options.masks, whole=options.whole_images)
    return ScaledObjectImages(data, config, masks=options.masks, short_side=options.short_side, max_side=options.max_side)


def _size(image: Tensor) -> scaling.Size:
    height, width = image.shape[1:]
    return height, width
