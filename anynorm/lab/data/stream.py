"""Datasets that do not fit in memory: images are decoded while the model trains.

data = load_stream("stream:PATH", image_size=224)
with StepLoader(data.train, TrainTransform(224), samples, num_workers=2) as loader:
    images, labels = loader.batch(number)         # uint8 (n, 3, 224, 224) and int64 (n,)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.lab.data.folder import choose_indices, find_splits, report_unreadable, split_indices
from anynorm.lab.data.image_sources import ImageFiles, ImageSource, Indices
from anynorm.lab.data.loader import Batch, StepLoader, Transform, decode
from anynorm.lab.data.shape import DataShape
from anynorm.lab.data.standardization import Standardized, channel_moments
from anynorm.lab.data.transforms import RESIZE_RATIO, TestTransform, TrainTransform
from anynorm.progress import track

NUM_SAMPLES = 1000
"""Number of training images from which mean and standard deviation are estimated."""


@dataclass(frozen=True)
class StreamedDataset(Standardized):
    """Training and test images that are decoded when they are used.

    Attributes:
        train: The training images, to be read by a `StepLoader`.
        test: The test images.
        num_classes: Number of classes; labels are 0 … num_classes − 1.
        mean: Mean of each channel, (3, 1, 1), over a fixed sample of at most 1000 training images.
        std: Standard deviation of each channel, (3, 1, 1), over this sample.
        image_size: Height and width of the test images.
    """

    train: ImageSource
    test: ImageSource
    num_classes: int
    mean: Tensor
    std: Tensor
    image_size: int

    @property
    def shape(self) -> DataShape:
        """Shape of an image, and the number of classes: the argument of `anynorm.lab.models.build_model`."""
        return DataShape(3, self.image_size, self.image_size, self.num_classes)

    def test_batches(
        self,
        batch_size: int,
        num_workers: int = 0,
        *,
        rank: int = 0,
        world_size: int = 1,
        resize_ratio: float = RESIZE_RATIO,
    ) -> Iterator[Batch]:
        """Yield the test split in batches of standardized images and labels, in order.

        Args:
            batch_size: Images per batch.
            num_workers: Number of worker processes.
            rank: Rank of this process, which gets every `world_size`-th batch.
            world_size: Number of processes.
            resize_ratio: See `TestTransform`.
        """
        starts = range(rank * batch_size, len(self.test), world_size * batch_size)
        transform = TestTransform(self.image_size, resize_ratio)
        for images, labels in self._batches(self.test, batch_size, starts, transform, num_workers):
            yield self.standardize(images), labels

    def train_batches(self, batch_size: int, num_images: int | None = None, num_workers: int = 0) -> Iterator[Batch]:
        """Yield training images, the central squares as uint8, and their labels.

        Args:
            batch_size: Images per batch.
            num_images: Number of images, chosen at random but the same in every call; None for all, in order.
            num_workers: Number of processes that decode.
        """
        source = self.train.select(choose_indices(len(self.train), num_images))
        transform = TrainTransform(self.image_size, min_area=0, flip=False, color_jitter=0)
        yield from self._batches(source, batch_size, range(0, len(source), batch_size), transform, num_workers)

    def _batches(
        self, source: ImageSource, batch_size: int, starts: range, transform: Transform, num_workers: int
    ) -> Iterator[Batch]:
        def samples(number: int) -> tuple[Indices, Indices]:
            start = starts[number] if number < len(starts) else len(source)
            indices = range(start, min(start + batch_size, len(source)))
            return indices, [0] * len(indices)

        with StepLoader(source, transform, samples, num_workers=num_workers) as loader:
            for number in range(len(starts)):
                yield loader.batch(number)


def load_stream(name: str, image_size: int, *, skip_unreadable: bool = False) -> StreamedDataset:
    """Return the images of `stream:PATH`, a folder as in `folder.find_splits`. A folder without a test split is split at random.

    Args:
        name: `stream:PATH`.
        image_size: Height and width of the test images.
        skip_unreadable: Decode every image once, name those that cannot be decoded on stderr, and leave them out.

    Raises:
        DataError: if the folder does not have the required structure, or an image cannot be decoded.
    """
    splits = [ImageFiles.from_paths(split.path, split.relative_files, split.labels) for split in find_splits(name)]
    num_classes = int(max(split.labels.max() for split in splits)) + 1
    return make_streamed(splits, num_classes, image_size, skip_unreadable=skip_unreadable)


def make_streamed(
    splits: Sequence[ImageSource], num_classes: int, image_size: int, *, skip_unreadable: bool = False
) -> StreamedDataset:
    """Make a dataset from two splits (train, then test), or from one, which is split at random.

    Raises:
        DataError: if there are fewer than 2 classes, or an image cannot be decoded.
    """
    if num_classes < 2:
        raise DataError(
            f"a dataset must have at least 2 classes; got {num_classes}. Check the labels: classes are numbered from 0."
        )
    if skip_unreadable:
        splits = [leave_out_unreadable(split) for split in splits]
    if len(splits) == 1:
        splits = [splits[0].select(indices) for indices in split_indices(len(splits[0]))]
    train, test = splits
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:NUM_SAMPLES].tolist()
    transform = TestTransform(image_size)
    sample = [decode(train, index, transform, 0) for index in track(order, "estimating mean and standard deviation")]
    return StreamedDataset(train, test, num_classes, *channel_moments(torch.from_numpy(np.stack(sample))), image_size)


def leave_out_unreadable(source: ImageSource) -> ImageSource:
    """Decode every image once and return the readable ones; the others are listed on stderr."""
    readable, unreadable = [], []
    transform = TestTransform(1)
    for index in track(range(len(source)), "checking images"):
        try:
            decode(source, index, transform, 0)
            readable.append(index)
        except DataError:
            unreadable.append(source.name(index))
    report_unreadable(unreadable, len(source), source.root, skip_unreadable=True)
    return source.select(readable)
