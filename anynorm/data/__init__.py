"""Data sets by name, in memory: uint8 images to train on and to test with.

digits mnist fashion-mnist cifar10 cifar100      see `sets`
cifar10@16                                       any of these, brought to 16 × 16 pixels by averaging
folder:PATH                                      PATH/train/CLASS/… and PATH/test/CLASS/…, or PATH/CLASS/… alone; see `folder`
package.module:factory                           gives (images, labels) to train on, (images, labels) to test with
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anynorm.core.cuts import divisors
from anynorm.core.moments import Moments, pool, pool_stacked
from anynorm.data import sets
from anynorm.data.folder import read_folder
from anynorm.errors import DataError
from anynorm.io.checkpoints import call_factory
from anynorm.kernels import moments
from anynorm.models.shape import Shape

HELD_OUT = 0.25
"""The part of a data set without a test split that is kept for testing."""


@dataclass(frozen=True)
class DataSet:
    """Images and labels, and what it takes to standardise them."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int
    mean: Tensor
    std: Tensor

    @property
    def shape(self) -> Shape:
        """What a model has to fit."""
        channels, height, width = self.train[0].shape[1:]
        return Shape(channels, height, width, self.classes)

    def tests(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Give the test set in batches, standardised."""
        images, labels = self.test
        for start in range(0, len(images), size):
            yield self.standardised(images[start : start + size]), labels[start : start + size]

    def standardised(self, images: Tensor) -> Tensor:
        """Turn bytes into numbers of mean 0 and deviation 1 over the training images, channel by channel."""
        return (images.float() - self.mean) / self.std


def held_out(images: Tensor, labels: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Share images out at random, the same way each time."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    cut = round(len(images) * (1 - HELD_OUT))
    return (images[order[:cut]], labels[order[:cut]]), (images[order[cut:]], labels[order[cut:]])


SETS: dict[str, Callable[[], Any]] = {
    "digits": lambda: held_out(*sets.digits()),
    "mnist": lambda: (sets.mnist("train"), sets.mnist("test")),
    "fashion-mnist": lambda: (sets.fashion_mnist("train"), sets.fashion_mnist("test")),
    "cifar10": lambda: (sets.cifar10("train"), sets.cifar10("test")),
    "cifar100": lambda: (sets.cifar100("train"), sets.cifar100("test")),
}


def load(name: str, side: int = 64) -> DataSet:
    """Load a data set by its name.

    Args:
        side: the size that images of a folder are brought to.

    >>> load("digits").shape
    Shape(channels=1, height=8, width=8, classes=10)
    """
    if name.partition("@")[0] in SETS:
        train, test = _named(name)
    elif name.startswith("folder:"):
        found = read_folder(name.removeprefix("folder:"), side)
        train, test = found if len(found) == 2 else held_out(*found[0])
    elif ":" in name:
        train, test = _own(name)
    else:
        near = difflib.get_close_matches(name, SETS, n=2, cutoff=0.4)
        hint = f" Near: {' '.join(near)}." if near else ""
        raise DataError(f"There is no data set {name!r}.{hint} Known: {' '.join(SETS)}, folder:PATH, or package.module:factory.")
    classes = int(max(train[1].max(), test[1].max())) + 1
    if classes < 2:
        raise DataError(f"{name} has one class: there is nothing to tell apart.")
    mean, std = _moments(train[0])
    return DataSet(train, test, classes, mean, std.clamp(min=1e-3))


def _named(name: str) -> Any:
    """Give a set by its name, at its own size or averaged down."""
    known, at, size = name.partition("@")
    splits = SETS[known]()
    if not at:
        return splits
    whole = splits[0][0].shape[-1]
    if not size.isdigit() or not 0 < int(size) <= whole or whole % int(size):
        raise DataError(f"{name}: images of {whole} × {whole} pixels can be averaged to {' '.join(map(str, divisors(whole)))}.")
    return tuple((_averaged(images, whole // int(size)), labels) for images, labels in splits)


def _averaged(images: Tensor, factor: int) -> Tensor:
    """Average squares of pixels, a part of the images at a time."""
    parts = [torch.nn.functional.avg_pool2d(some.float(), factor).round().to(torch.uint8) for some in images.split(5000)]  # type: ignore[no-untyped-call]
    return torch.cat(parts)


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Give mean and deviation of each channel, (c, 1, 1), without a copy of all images in double."""
    parts = [pool(moments(some.double(), 1), (1, images.shape[1], 1)) for some in torch.split(images, 5000)]
    whole = pool_stacked(Moments(*(torch.stack(tables) for tables in zip(*parts, strict=True))))
    return whole.mean[0, :, :, None].float(), whole.var[0, :, :, None].sqrt().float()


def _own(name: str) -> Any:
    found = call_factory(name)
    try:
        (train, labels), (test, answers) = found
        splits = (
            (torch.as_tensor(train), torch.as_tensor(labels).long()),
            (torch.as_tensor(test), torch.as_tensor(answers).long()),
        )
    except (TypeError, ValueError):
        raise DataError(f"{name} must give (images, labels), (images, labels), to train on and to test with.") from None
    for images, answers in splits:
        fits = images.dim() == 4 and answers.shape == (len(images),) and images.shape[1:] == splits[0][0].shape[1:]
        if not fits or not len(images) or int(answers.min()) < 0:
            got = f"{name} gave images {tuple(images.shape)} and labels {tuple(answers.shape)}"
            raise DataError(f"{got}; wanted (n, c, h, w), alike in both splits, and (n,) from 0.")
    return splits
