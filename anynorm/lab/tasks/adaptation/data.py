"""Two domains with common classes: labeled images of the source, images without labels of the target.

A domain is a data set by name: `usps`, `mnist@16`, `mnist-m`, `digits-faded`, `pacs/photo`, `office31/amazon`,
`folder:PATH/DOMAIN` with one subfolder per class, or `package.module:factory`. Classes of folders correspond by name, those of
other data sets by number.

    >>> pair = load_pair("digits", "digits-faded")
    >>> pair.source[0].shape, pair.target.shape, pair.num_classes
    (torch.Size([1348, 1, 8, 8]), torch.Size([1348, 1, 8, 8]), 10)

If a data set has no test split (PACS, Office-31, a folder of classes), all of its images are used for adaptation and for testing,
as is usual; their labels are used only for testing. Images of folders and collections are shuffled with a fixed seed, so that
the first images cover all classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.lab.data.datasets import DATASETS, STREAMS, ImageDataset, Split, load_in_memory
from anynorm.lab.data.domain_readers import is_collection, read_collection
from anynorm.lab.data.folder import class_names, find_splits, read_folder
from anynorm.lab.data.shape import DataShape
from anynorm.lab.data.standardization import Standardized, channel_moments


@dataclass(frozen=True)
class Domain:
    """The labeled images of one domain.

    Attributes:
        name: the name of the data set.
        train: images (n, c, h, w) and labels (n,).
        test: images and labels of the test split; those of `train` if the data set has none.
        classes: the names of the classes; labels are their positions.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels, height and width."""
        return tuple(self.train[0].shape[1:])


@dataclass(frozen=True)
class DomainPair(Standardized):
    """A labeled source and an unlabeled target with the same classes.

    Attributes:
        source: training images of the source (n, c, h, w) and their labels (n,).
        target: training images of the target, without labels.
        source_test: test images and labels of the source.
        target_test: test images and labels of the target, for evaluation only.
        classes: the names of the classes.
        mean: mean of each channel over the training images of the source, (c, 1, 1); also used to standardize the target.
        std: standard deviation of each channel over the same images, (c, 1, 1).

    Raises:
        DataError: if the target has labels, or images differ in size.
    """

    source: Split
    target: Tensor
    source_test: Split
    target_test: Split
    classes: tuple[str, ...]
    mean: Tensor
    std: Tensor

    def __post_init__(self) -> None:
        target: Any = self.target
        if not isinstance(target, Tensor):
            got = f"{type(target).__name__} of {len(target)} items" if isinstance(target, tuple | list) else type(target).__name__
            raise DataError(
                "target must be a tensor of images without labels, because adaptation must not use them; "
                f"got a {got}. Labels for the evaluation belong to target_test."
            )
        shapes = {tuple(images.shape[1:]) for images in (self.source[0], self.target, self.source_test[0], self.target_test[0])}
        if len(shapes) > 1:
            raise DataError(f"images of both domains must be of one size; got {' and '.join(map(str, sorted(shapes)))}.")

    @property
    def num_classes(self) -> int:
        """The number of common classes."""
        return len(self.classes)

    @property
    def shape(self) -> DataShape:
        """Shape of an image, and the number of classes: the argument of `anynorm.lab.models.build_model`."""
        channels, height, width = self.target.shape[1:]
        return DataShape(channels, height, width, self.num_classes)

    def select(self, source: Tensor, target: Tensor) -> DomainPair:
        """Return a pair with some of the training images, by their indices; mean and std are not changed."""
        return replace(self, source=(self.source[0][source], self.source[1][source]), target=self.target[target])


def load_domain(name: str, image_size: int = 64, *, skip_unreadable: bool = False) -> Domain:
    """Load a domain by the name of its data set.

    Args:
        name: see `anynorm.lab.tasks.adaptation.data`.
        image_size: height and width to which images of PACS, Office-31 and folders are resized. Other data sets ignore it.
        skip_unreadable: leave out image files that cannot be decoded, instead of raising.

    Raises:
        DataError: if the data set is unknown, or its files are missing or damaged.
    """
    if is_collection(name):
        images, labels, classes = read_collection(name, image_size, skip_unreadable=skip_unreadable)
        shuffled = _shuffle((images, labels))
        return Domain(name, shuffled, shuffled, classes)
    if name.startswith("folder:"):
        splits = [_shuffle(split) for split in read_folder(name, image_size, skip_unreadable=skip_unreadable)]
        return Domain(name, splits[0], splits[-1], tuple(class_names(find_splits(name)[0].path)))
    if name.partition(":")[0] in STREAMS:
        raise DataError(f"domain adaptation reads all images into memory; {name} is decoded while training. Use folder:PATH.")
    data: ImageDataset = load_in_memory(name, image_size, skip_unreadable=skip_unreadable)
    return Domain(name, data.train, data.test, tuple(map(str, range(data.num_classes))))


def _shuffle(split: Split) -> Split:
    """Return the images of a split, which are sorted by class, shuffled with a fixed seed."""
    images, labels = split
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return images[order], labels[order]


def load_pair(source: str, target: str, image_size: int = 64, *, skip_unreadable: bool = False) -> DomainPair:
    """Load a source and a target by name; see `load_domain` and `make_pair`."""
    return make_pair(*(load_domain(name, image_size, skip_unreadable=skip_unreadable) for name in (source, target)))


@lru_cache(maxsize=2)
def load_pair_cached(source: str, target: str, image_size: int, source_hash: str, skip_unreadable: bool) -> DomainPair:  # noqa: ARG001
    """Load a pair once per process; `source_hash` is part of the key, so that a folder that has changed is read again."""
    return load_pair(source, target, image_size, skip_unreadable=skip_unreadable)


def make_pair(source: Domain, target: Domain) -> DomainPair:
    """Make a pair of two domains, reduced to their common classes; gray images become RGB if the others are.

    The labels of the target's training images are discarded.

    Raises:
        DataError: if the domains have fewer than 2 common classes, or images of different sizes.
    """
    classes = tuple(name for name in source.classes if name in target.classes)
    if len(classes) < 2:
        raise DataError(
            f"{source.name} and {target.name} must have at least 2 common classes; got {len(classes)}. "
            f"Classes of {source.name}: {_listed(source.classes)}; of {target.name}: {_listed(target.classes)}."
        )
    if source.image_shape[1:] != target.image_shape[1:]:
        (_, *a), (_, *b) = source.image_shape, target.image_shape
        smaller, larger = sorted((source, target), key=lambda domain: domain.image_shape[-1])
        base = larger.name.partition("@")[0]
        advice = f"Write {base}@{smaller.image_shape[-1]}" if base in DATASETS else "Resize them"
        raise DataError(
            f"images of both domains must be of one size; got {a[0]} × {a[1]} pixels in {source.name} and {b[0]} × {b[1]} in "
            f"{target.name}. {advice}."
        )
    channels = max(source.image_shape[0], target.image_shape[0])
    splits: list[Any] = [
        _reduce(split, domain, classes, channels) for domain in (source, target) for split in (domain.train, domain.test)
    ]
    return DomainPair(splits[0], splits[2][0], splits[1], splits[3], classes, *channel_moments(splits[0][0]))


def _reduce(split: Split, domain: Domain, classes: tuple[str, ...], channels: int) -> Split:
    """Return the images of some classes, relabeled by their positions in this list."""
    images, labels = split
    if domain.classes != classes:
        positions = torch.tensor([classes.index(name) if name in classes else -1 for name in domain.classes])
        labels = positions[labels]
        images, labels = images[labels >= 0], labels[labels >= 0]
    return images.expand(-1, channels, -1, -1), labels


def _listed(classes: tuple[str, ...], count: int = 8) -> str:
    return " ".join(classes[:count]) + (f" … ({len(classes)})" if len(classes) > count else "")
