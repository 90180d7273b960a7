"""Image classification datasets by name: uint8 images and labels in memory, or streamed from files (see `stream`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from anynorm.core.cuts import divisors
from anynorm.errors import DataError, unknown_name
from anynorm.io.checkpoints import call_factory
from anynorm.lab.data import readers
from anynorm.lab.data.domain_readers import faded_digits, is_collection, mnist_m, read_collection, usps
from anynorm.lab.data.folder import choose_indices, read_folder, split_indices
from anynorm.lab.data.hf import load_hf
from anynorm.lab.data.shape import DataShape
from anynorm.lab.data.standardization import CHUNK_SIZE, Standardized, channel_moments
from anynorm.lab.data.stream import StreamedDataset, load_stream

Split = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class ImageDataset(Standardized):
    """Training and test images in memory.

    Attributes:
        train: Images (n, c, h, w) and labels (n,).
        test: Images and labels of the test split.
        num_classes: Number of classes; labels are 0 … num_classes − 1.
        mean: Mean of each channel over the training images, (c, 1, 1).
        std: Standard deviation of each channel over the training images, (c, 1, 1).
    """

    train: Split
    test: Split
    num_classes: int
    mean: Tensor
    std: Tensor

    @property
    def shape(self) -> DataShape:
        """Shape of an image and number of classes, as expected by `anynorm.lab.models.build_model`."""
        channels, height, width = self.train[0].shape[1:]
        return DataShape(channels, height, width, self.num_classes)

    def test_batches(self, batch_size: int, *, rank: int = 0, world_size: int = 1) -> Iterator[Split]:
        """Yield the test split in batches of standardized images and labels, in order; see `StreamedDataset.test_batches`."""
        images, labels = self.test
        for start in range(rank * batch_size, len(images), world_size * batch_size):
            yield self.standardize(images[start : start + batch_size]), labels[start : start + batch_size]

    def train_batches(self, batch_size: int, num_images: int | None = None, num_workers: int = 0) -> Iterator[Split]:
        """Yield uint8 training images and their labels; see `StreamedDataset.train_batches`."""
        chosen = choose_indices(len(self.train[1]), num_images)
        images, labels = (values[chosen] for values in self.train)
        yield from zip(torch.split(images, batch_size), torch.split(labels, batch_size), strict=True)


def split_at_random(images: Tensor, labels: Tensor) -> tuple[Split, Split]:
    """Split images into a training and a test part; the split is the same in every call."""
    train, test = split_indices(len(images))
    return (images[train], labels[train]), (images[test], labels[test])


DATASETS: dict[str, Callable[[], tuple[Split, Split]]] = {
    "digits": lambda: split_at_random(*readers.digits()),
    "mnist": lambda: (readers.mnist("train"), readers.mnist("test")),
    "fashion-mnist": lambda: (readers.fashion_mnist("train"), readers.fashion_mnist("test")),
    "cifar10": lambda: (readers.cifar10("train"), readers.cifar10("test")),
    "cifar100": lambda: (readers.cifar100("train"), readers.cifar100("test")),
    "digits-faded": lambda: split_at_random(*faded_digits()),
    "usps": lambda: (usps("train"), usps("test")),
    "mnist-m": lambda: (mnist_m("train"), mnist_m("test")),
}


STREAMS: dict[str, Callable[..., StreamedDataset]] = {"stream": load_stream, "hf": load_hf}
"""The loader of a streamed dataset, by the prefix of its name."""


def load_dataset(name: str, image_size: int = 64, *, skip_unreadable: bool = False) -> Any:
    """Load a dataset by name; see `anynorm.lab.data` for the names.

    Args:
        name: A name of `DATASETS`, also with `@SIZE`; `folder:PATH`, `stream:PATH` or `hf:NAME`; or `package.module:factory`.
        image_size: Height and width to which the images of a folder, a stream or `hf:NAME` are resized. Other datasets ignore it.
        skip_unreadable: Leave out images that cannot be decoded, instead of raising. For streams and `hf:NAME`, every
            image is decoded once to find them. Other datasets ignore it.

    Returns:
        A `StreamedDataset` for `stream:PATH` and `hf:NAME`, whose images are decoded when they are used; otherwise an
        `ImageDataset`, whose images are in memory. (The annotation is `Any`: most callers pass names of one kind.)

    Raises:
        DataError: if the name is unknown, a file is missing or damaged, the data do not have the required form, or a folder does
            not fit in memory.

    >>> load_dataset("digits").shape
    DataShape(channels=1, height=8, width=8, num_classes=10)
    """
    kind, colon, _ = name.partition(":")
    if colon and kind in STREAMS:
        return STREAMS[kind](name, image_size, skip_unreadable=skip_unreadable)
    return load_in_memory(name, image_size, skip_unreadable=skip_unreadable)


def load_in_memory(name: str, image_size: int = 64, *, skip_unreadable: bool = False) -> ImageDataset:
    """Load a dataset other than `stream:PATH` and `hf:NAME`; see `load_dataset`."""
    if name.partition("@")[0] in DATASETS:
        train, test = _read_named(name)
    elif is_collection(name):
        images, labels, _ = read_collection(name, image_size, skip_unreadable=skip_unreadable)
        train, test = split_at_random(images, labels)
    elif name.startswith("folder:"):
        splits = read_folder(name, image_size, skip_unreadable=skip_unreadable)
        train, test = (splits[0], splits[1]) if len(splits) == 2 else split_at_random(*splits[0])
    elif ":" in name:
        train, test = _call_factory(name)
    else:
        forms = ("pacs/DOMAIN", "office31/DOMAIN", "folder:PATH", "stream:PATH", "hf:NAME", "package.module:factory")
        raise DataError(unknown_name("dataset", name, DATASETS, *forms))
    num_classes = int(max(train[1].max(), test[1].max())) + 1
    if num_classes < 2:
        raise DataError(f"{name} must have at least 2 classes; got {num_classes}. Check the labels: classes are numbered from 0.")
    return ImageDataset(train, test, num_classes, *channel_moments(train[0]))


@lru_cache(maxsize=2)
def load_cached(name: str, image_size: int, source_hash: str = "", skip_unreadable: bool = False) -> Any:  # noqa: ARG001
    """Load a dataset once per process; `source_hash` is part of the key, so that a folder that has changed is read again."""
    return load_dataset(name, image_size, skip_unreadable=skip_unreadable)


def _read_named(name: str) -> tuple[Split, Split]:
    """Read a dataset of `DATASETS`, at its original size or averaged down (`cifar10@16`).

    Images of 28 × 28 pixels are padded to 32 × 32, as for LeNet-5, where the size divides 32 and not 28 (`mnist@16`).
    """
    base, at, size = name.partition("@")
    train, test = DATASETS[base]()
    if not at:
        return train, test
    original = train[0].shape[-1]
    sizes = divisors(original) + [size for size in divisors(32) if original == 28 and size not in divisors(28)]
    if not size.isdigit() or int(size) not in sizes:
        raise DataError(
            f"{name}: the size after @ must divide the original {original} × {original} pixels; got {size!r}. "
            f"Usable: {' '.join(map(str, sorted(sizes)))}."
        )
    padding = 0 if original % int(size) == 0 else (32 - original) // 2
    return (_average_pixels(train[0], int(size), padding), train[1]), (_average_pixels(test[0], int(size), padding), test[1])


def _average_pixels(images: Tensor, size: int, padding: int) -> Tensor:
    """Replicate the border pixels and average squares of pixels, rounded to uint8."""
    functional, factor = torch.nn.functional, (images.shape[-1] + 2 * padding) // size
    padded = (functional.pad(chunk.float(), [padding] * 4, mode="replicate") for chunk in torch.split(images, CHUNK_SIZE))
    chunks = [functional.avg_pool2d(chunk, factor) for chunk in padded]
    return torch.cat([chunk.round().to(torch.uint8) for chunk in chunks])


def _call_factory(name: str) -> tuple[Split, Split]:
    """Call `package.module:factory` and check its result."""
    returned = call_factory(name)
    try:
        (train_images, train_labels), (test_images, test_labels) = returned
        train = torch.as_tensor(train_images), torch.as_tensor(train_labels).long()
        test = torch.as_tensor(test_images), torch.as_tensor(test_labels).long()
    except (TypeError, ValueError):
        raise DataError(
            f"{name} must return (images, labels), (images, labels): train and test; got {type(returned).__name__}."
        ) from None
    for images, labels in (train, test):
        has_shape = images.dim() == 4 and labels.shape == (len(images),) and images.shape[1:] == train[0].shape[1:]
        if not has_shape or not len(images) or int(labels.min()) < 0:
            raise DataError(
                f"{name} must return images (n, c, h, w), of the same size in both splits, and labels (n,) from 0; "
                f"got images {tuple(images.shape)} and labels {tuple(labels.shape)}."
            )
    return train, test
