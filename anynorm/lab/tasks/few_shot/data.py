"""Data sets of few-shot learning: images of base classes for training, and of novel classes for testing.

omniglot                     background and evaluation characters, with the alphabet of each character; see `omniglot`
omniglot-validation          background characters alone: those of the last fifth of their alphabets are novel classes
miniimagenet                 64 train and 20 test classes; see `miniimagenet`
miniimagenet-validation      64 train and 16 val classes
folder:PATH                  PATH/base/CLASS/… and PATH/novel/CLASS/…, or PATH/train/CLASS/… and PATH/test/CLASS/… (or val)
digits, cifar100@16, …       a data set of `anynorm.lab.data` in memory: the first 60 % of its classes are base classes

Validation data are for the choice of settings: they have no class in common with the novel classes of the test.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.lab.data.datasets import STREAMS, ImageDataset, load_in_memory
from anynorm.lab.data.download import find_path
from anynorm.lab.data.folder import read_folder
from anynorm.lab.data.standardization import channel_moments
from anynorm.lab.tasks.few_shot.miniimagenet import miniimagenet
from anynorm.lab.tasks.few_shot.omniglot import Characters, omniglot

Split = tuple[Tensor, Tensor]
MINIIMAGENET = {"miniimagenet": "test", "miniimagenet-validation": "val"}
"""The part of miniImageNet with the novel classes, by the name of the data set."""
VALIDATION_FRACTION = 0.2
"""Fraction of the background alphabets of Omniglot whose characters are the novel classes of `omniglot-validation`."""
BASE_FRACTION = 0.6
"""Fraction of base classes in a data set without a predefined split of classes."""
LAYOUTS = (("base", "novel"), ("train", "test"), ("train", "val"))
"""Subfolders of a folder: base classes, novel classes."""


@dataclass(frozen=True)
class FewShotDataset:
    """Images of base and novel classes, which are disjoint.

    Attributes:
        base: images, uint8 (n, c, h, w), and labels (n,) from 0, of the base classes.
        novel: images and labels of the novel classes; labels also start at 0.
        novel_groups: index of the group (alphabet) of each novel class; None without groups.

    Raises:
        DataError: if there are fewer than two base classes.
    """

    base: Split
    novel: Split
    novel_groups: Tensor | None = None

    def __post_init__(self) -> None:
        count = len(set(self.base[1].tolist()))
        if count < 2:
            raise DataError(f"training needs at least 2 base classes; got {count}.")

    @property
    def num_base_classes(self) -> int:
        """The number of base classes."""
        return int(self.base[1].max()) + 1

    def as_image_dataset(self) -> ImageDataset:
        """Return the base classes as the training split and the novel classes as the test split, standardized by the former."""
        return ImageDataset(self.base, self.novel, self.num_base_classes, *channel_moments(self.base[0]))

    def pad(self, padding: int) -> FewShotDataset:
        """Add zeros on each side of every image.

        Raises:
            DataError: if `padding` is negative.
        """
        if padding < 0:
            raise DataError(f"padding must be 0 or more; got {padding}.")
        base, novel = ((torch.constant_pad_nd(images, (padding,) * 4), labels) for images, labels in (self.base, self.novel))
        return replace(self, base=base, novel=novel) if padding else self

    def choose_base_classes(self, count: int, seed: int) -> FewShotDataset:
        """Return the data set with a random subset of the base classes; a count of 0 keeps all.

        Raises:
            DataError: if there are fewer base classes.
        """
        if not count:
            return self
        available = self.num_base_classes
        if not 2 <= count <= available:
            raise DataError(f"num_base_classes must be between 2 and the {available} base classes, or 0 for all; got {count}.")
        chosen = torch.randperm(available, generator=torch.Generator().manual_seed(seed))[:count].sort().values
        new_label = torch.full((available,), -1)
        new_label[chosen] = torch.arange(count)
        images, labels = self.base
        kept = new_label[labels] >= 0
        return replace(self, base=(images[kept], new_label[labels[kept]]))


def load_few_shot(name: str, image_size: int = 64, *, skip_unreadable: bool = False) -> FewShotDataset:
    """Load a data set of few-shot learning.

    Args:
        name: see `anynorm.lab.tasks.few_shot.data`.
        image_size: height and width to which the images of a folder and of miniImageNet are resized. Others ignore it.
        skip_unreadable: leave out images that cannot be decoded, instead of raising.

    Raises:
        DataError: if the name is unknown, a file is missing or damaged, or base and novel classes overlap.

    >>> data = load_few_shot("digits")
    >>> data.novel[1].unique()
    tensor([0, 1, 2, 3])
    """
    kind = name.partition(":")[0]
    if name == "omniglot":
        return _from_characters(omniglot("background"), omniglot("evaluation"))
    if name == "omniglot-validation":
        return _from_characters(*hold_out_alphabets(omniglot("background")))
    if name in MINIIMAGENET:
        parts = ("train", MINIIMAGENET[name])
        base, novel = (miniimagenet(part, image_size, skip_unreadable=skip_unreadable) for part in parts)
        return FewShotDataset(base, novel)
    if kind == "folder":
        paths = _find_parts(name)
        base, novel = (read_folder(f"folder:{path}", image_size, skip_unreadable=skip_unreadable)[0] for path in paths)
        return FewShotDataset(base, novel)
    if kind in STREAMS:
        raise DataError(f"few-shot learning reads all images into memory; {name} is decoded while training. Use folder:PATH.")
    return split_classes(load_in_memory(name, image_size))


@lru_cache(maxsize=2)
def load_few_shot_cached(name: str, image_size: int, source_hash: str = "", skip_unreadable: bool = False) -> FewShotDataset:  # noqa: ARG001
    """Load a data set once per process; `source_hash` is part of the key, so that a folder that has changed is read again."""
    return load_few_shot(name, image_size, skip_unreadable=skip_unreadable)


def split_classes(data: ImageDataset) -> FewShotDataset:
    """Split the classes of a data set into base (the first 60 %) and novel classes, with the images of both splits."""
    images, labels = (torch.cat(pair) for pair in zip(data.train, data.test, strict=True))
    num_base = round(BASE_FRACTION * data.num_classes)
    is_base = labels < num_base
    return FewShotDataset((images[is_base], labels[is_base]), (images[~is_base], labels[~is_base] - num_base))


def hold_out_alphabets(characters: Characters) -> tuple[Characters, Characters]:
    """Return the characters of the first alphabets and of the last fifth of them, at least one."""
    alphabets = sorted({name.partition("/")[0] for name in characters.names})
    held_out = set(alphabets[-max(1, round(VALIDATION_FRACTION * len(alphabets))) :])
    is_held_out = torch.tensor([name.partition("/")[0] in held_out for name in characters.names])
    parts = []
    for chosen in (~is_held_out, is_held_out):
        number = torch.cumsum(chosen.long(), 0) - 1
        kept = chosen[characters.labels]
        names = [name for name, keep in zip(characters.names, chosen.tolist(), strict=True) if keep]
        parts.append(Characters(characters.images[kept], number[characters.labels[kept]], names))
    return parts[0], parts[1]


def _from_characters(base: Characters, novel: Characters) -> FewShotDataset:
    alphabets = [name.partition("/")[0] for name in novel.names]
    index = {name: k for k, name in enumerate(sorted(set(alphabets)))}
    groups = torch.tensor([index[name] for name in alphabets])
    return FewShotDataset((base.images, base.labels), (novel.images, novel.labels), groups)


def _find_parts(name: str) -> tuple[Path, Path]:
    """Return the folders of base and novel classes.

    Raises:
        DataError: if the folder lacks these subfolders, or their classes overlap.
    """
    root = find_path(name.partition(":")[2])
    layout = next((names for names in LAYOUTS if all((root / part).is_dir() for part in names)), None)
    if layout is None:
        expected = ", or ".join(f"{base}/CLASS/… and {novel}/CLASS/…" for base, novel in LAYOUTS)
        raise DataError(f"{name} must be a folder with {expected}; {root.absolute()} has none of these.")
    base, novel = (root / part for part in layout)
    common = sorted({path.name for path in base.iterdir() if path.is_dir()} & {path.name for path in novel.iterdir()})
    if common:
        raise DataError(f"base and novel classes must be disjoint; {base} and {novel} have in common: {' '.join(common[:10])}.")
    return base, novel
