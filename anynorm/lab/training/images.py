"""The images of a classification run: in memory, or decoded while the run trains.

Both return the uint8 images and labels of a micro-batch by its index, and standardized test images.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from anynorm.errors import DataError, SpecError
from anynorm.lab.data import ImageDataset, StepLoader, StreamedDataset, load_cached
from anynorm.lab.data.transforms import RESIZE_RATIO, TrainTransform
from anynorm.lab.training.config import Config
from anynorm.lab.training.distributed import Processes
from anynorm.lab.training.sampler import Sampler

Batch = tuple[Tensor, Tensor]


class InMemoryImages:
    """Images of an `ImageDataset`: the training images that the seed of a run chooses, and the first test images."""

    def __init__(self, data: ImageDataset, config: Config) -> None:
        if config.num_validation:
            trained, held_out = split_validation(config, len(data.train[1]))
            (images, labels), parts = data.train, (trained, held_out)
            train, test = ((images[part], labels[part]) for part in parts)
            data = replace(data, train=train, test=test)
        images, labels = data.train
        chosen = choose_samples(config, len(images))
        num_tests = count_tests(config, len(data.test[1]))
        train = (images, labels) if chosen is None else (images[chosen], labels[chosen])
        self.data = replace(data, train=train, test=(data.test[0][:num_tests], data.test[1][:num_tests]))

    def __len__(self) -> int:
        return len(self.data.train[1])

    def with_data(self, data: ImageDataset) -> InMemoryImages:
        """Return all images of another data set."""
        images = copy.copy(self)
        images.data = data
        return images

    @property
    def num_tests(self) -> int:
        """The number of test images."""
        return len(self.data.test[1])

    def batch(self, sampler: Sampler, step: int, micro_batch: int, *, num_workers: int = 0) -> Batch:
        """Return images and labels of a micro-batch; there is nothing to decode for workers."""
        indices = sampler.indices(step, micro_batch)
        images, labels = self.data.train
        return images[indices], labels[indices]

    def test_batches(self, batch_size: int, num_workers: int, processes: Processes) -> Iterator[Batch]:
        """Yield standardized test images and their labels, in order: those of this process."""
        return self.data.test_batches(batch_size, rank=processes.rank, world_size=processes.count)

    def close(self) -> None:
        """Do nothing: there are no worker processes."""


class StreamedImages:
    """Images of a `StreamedDataset`, decoded by worker processes; see `InMemoryImages`."""

    def __init__(self, data: StreamedDataset, config: Config) -> None:
        if config.num_validation:
            trained, held_out = split_validation(config, len(data.train))
            data = replace(data, train=data.train.select(trained), test=data.train.select(held_out))
        chosen = choose_samples(config, len(data.train))
        train = data.train if chosen is None else data.train.select(chosen)
        self.data = replace(data, train=train, test=data.test.select(range(count_tests(config, len(data.test)))))
        self.config = config
        self._loader: StepLoader | None = None

    def __len__(self) -> int:
        return len(self.data.train)

    @property
    def num_tests(self) -> int:
        """The number of test images."""
        return len(self.data.test)

    def batch(self, sampler: Sampler, step: int, micro_batch: int, *, num_workers: int = 0) -> Batch:
        """Return images and labels of a micro-batch; workers, started in the first call, prefetch the following ones."""
        if self._loader is None:
            self._loader = self._make_loader(sampler, num_workers)
        return self._loader.batch(step * sampler.micro_batches_per_step + micro_batch)

    def _make_loader(self, sampler: Sampler, num_workers: int) -> StepLoader:
        config = self.config
        transform = TrainTransform(config.image_size, config.min_area, flip=False, color_jitter=config.color_jitter)

        def samples(batch: int) -> tuple[Tensor, list[int]]:
            step, micro_batch = divmod(batch, sampler.micro_batches_per_step)
            indices = sampler.indices(step, micro_batch)
            first = sampler.seed(step, micro_batch) * config.batch_size
            return indices, list(range(first, first + len(indices)))

        return StepLoader(self.data.train, transform, samples, num_workers=num_workers, pin_memory=True)

    def test_batches(self, batch_size: int, num_workers: int, processes: Processes) -> Iterator[Batch]:
        """Yield standardized test images and their labels, in order: those of this process.

        Without random-resized crops, networks are trained with whole central squares, and are tested with them.
        """
        return self.data.test_batches(
            batch_size,
            num_workers,
            rank=processes.rank,
            world_size=processes.count,
            resize_ratio=RESIZE_RATIO if self.config.min_area else 1,
        )

    def close(self) -> None:
        """Stop the worker processes."""
        if self._loader is not None:
            self._loader.close()


Images = InMemoryImages | StreamedImages


def load_images(config: Config) -> ImageDataset | StreamedDataset:
    """Return the data set of a run, loaded once per process."""
    data: ImageDataset | StreamedDataset = load_cached(config.data, config.image_size, config.source_hash, config.skip_unreadable)
    return data


def make_images(data: ImageDataset | StreamedDataset, config: Config) -> Images:
    """Return the images of a run.

    Raises:
        DataError: if the data set has fewer images than the run takes.
    """
    return StreamedImages(data, config) if isinstance(data, StreamedDataset) else InMemoryImages(data, config)


def split_images(images: Images, seed: int, *, from_test: bool) -> tuple[InMemoryImages, InMemoryImages]:
    """Split the images of a run into those for the weights and those for α.

    Args:
        images: the images of a run.
        seed: seed of the random split.
        from_test: whether α gets a random half of the test images instead of half of the training images.

    Returns:
        Two sets of training images, both with the same test images, which are in neither set.

    Raises:
        SpecError: if images are streamed.
    """
    if not isinstance(images, InMemoryImages):
        raise SpecError("a search needs images in memory; got streamed ones. Usable: a built-in data set or folder:PATH.")
    data = images.data
    source = data.test if from_test else data.train
    order = torch.randperm(len(source[1]), generator=torch.Generator().manual_seed(seed))
    halves = [(source[0][part], source[1][part]) for part in (order[: len(order) // 2], order[len(order) // 2 :])]
    if from_test:
        weights, alpha = (replace(data, train=train, test=halves[1]) for train in (data.train, halves[0]))
    else:
        weights, alpha = (replace(data, train=half) for half in halves)
    return images.with_data(weights), images.with_data(alpha)


def choose_samples(config: Config, available: int) -> Tensor | None:
    """Return the training images of a run, chosen by its seed; None for all."""
    if config.num_train is None:
        return None
    _check_count("num_train", config.num_train, available)
    return torch.randperm(available, generator=torch.Generator().manual_seed(config.seed))[: config.num_train]


def split_validation(config: Config, available: int) -> tuple[Tensor, Tensor]:
    """Return the training images and the images that are held out for validation, the same for all seeds."""
    _check_count("num_validation", config.num_validation, available - 1)
    order = torch.randperm(available, generator=torch.Generator().manual_seed(0))
    return order[config.num_validation :], order[: config.num_validation]


def count_tests(config: Config, available: int) -> int:
    """Return the number of test images of a run."""
    if config.num_test is None:
        return available
    _check_count("num_test", config.num_test, available)
    return config.num_test


def _check_count(name: str, count: int, available: int) -> None:
    if not 0 < count <= available:
        raise DataError(f"{name} must be between 1 and the {available} images of the data set; got {count}.")
