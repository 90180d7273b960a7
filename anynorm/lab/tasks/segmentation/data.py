"""Images with a class per pixel, by name.

    shapes                     generated images of 64 × 64 pixels with three textures; needs no file; see `shapes`
    camvid nuclei pets         .npz files of the data directory; see `readers`
    camvid:PATH                a folder in SegNet's layout
    cityscapes:PATH            a folder with leftImg8bit/ and gtFine/
    ade20k:PATH                the folder ADEChallengeData2016
    package.module:factory     a function that returns a `SegmentationDataset`, or (train, test, class_names)

Images of folders are decoded when they are used; the others are in memory. Labels are classes from 0, or `IGNORED` (255).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.io.checkpoints import call_factory
from anynorm.lab.data.folder import choose_indices
from anynorm.lab.data.names import resolve
from anynorm.lab.data.standardization import MIN_STD, SampleDataset
from anynorm.lab.tasks.segmentation.masks import IGNORED, MaskFiles, Sample
from anynorm.lab.tasks.segmentation.readers import (
    Splits,
    read_ade20k,
    read_camvid,
    read_camvid_folder,
    read_cityscapes,
    read_nuclei,
    read_pets,
)
from anynorm.lab.tasks.segmentation.shapes import CLASSES, make_shapes

Reader = Callable[[str], "Splits | SegmentationDataset"]
DATASETS: dict[str, Reader] = {
    "shapes": lambda _: Splits(make_shapes("train"), make_shapes("test"), CLASSES),
    "camvid": read_camvid,
    "nuclei": read_nuclei,
    "pets": read_pets,
}
FOLDERS: dict[str, Reader] = {
    "camvid": read_camvid_folder,
    "cityscapes": read_cityscapes,
    "ade20k": read_ade20k,
}
"""The reader of a folder, by the prefix of the data set's name."""
NUM_MOMENT_IMAGES = 500
"""Number of training images from which the mean and the standard deviation of a channel are estimated."""
MAX_CHECKED = 2000
"""Maximum number of images whose masks are checked when the data set is loaded; masks of larger folders are checked on access."""


class SegmentationDataset(SampleDataset[Sample]):
    """Training and test images with a class per pixel.

    A sample is a pair of a uint8 image (3, h, w) and uint8 labels (h, w), classes or `IGNORED`. Images may differ in size.
    """


def load_segmentation(name: str) -> SegmentationDataset:
    """Load a segmentation data set by name.

    Args:
        name: a name of `DATASETS`, `camvid:PATH`, `cityscapes:PATH`, `ade20k:PATH` or `package.module:factory`. A path is
            relative to the working directory or to the data directory.

    Raises:
        DataError: if the name is unknown, a file is missing, a mask and its image differ in size, or a label is not a class.

    >>> data = load_segmentation("shapes")
    >>> len(data.train), len(data.test), data.class_names
    (192, 48, ('background', 'stripes', 'bars', 'checks'))
    """
    read = resolve(name, "segmentation data set", DATASETS, FOLDERS, _call_factory)(name)
    if isinstance(read, SegmentationDataset):
        return read
    _check_labels(name, read)
    return SegmentationDataset(*read, *_moments(read.train))


@lru_cache(maxsize=2)
def load_segmentation_cached(name: str, source_hash: str = "") -> SegmentationDataset:  # noqa: ARG001
    """Load a data set once per process; `source_hash` is part of the key, so that a folder that has changed is read again."""
    return load_segmentation(name)


def _moments(samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation per channel over some training images, (3, 1, 1); pixels have equal weights."""
    count, total, squares = 0, torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for index in choose_indices(len(samples), NUM_MOMENT_IMAGES).tolist():
        pixels = samples[index][0].flatten(1).to(torch.int64)  # sums of integers are exact
        count, total, squares = count + pixels.shape[1], total + pixels.sum(1), squares + pixels.square().sum(1)
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=0).sqrt().clamp(min=MIN_STD)
    return mean.float()[:, None, None], std.float()[:, None, None]


def _check_labels(name: str, read: Splits) -> None:
    """Check that labels are classes, and warn about classes without a training pixel."""
    for samples in (read.train, read.test):
        if not len(samples):
            raise DataError(f"{name} must have training and test images; got {len(read.train)} and {len(read.test)}.")
    if len(read.train) + len(read.test) > MAX_CHECKED:
        return
    counts = [_count_labels(name, samples, len(read.class_names)) for samples in (read.train, read.test)]
    if missing := [each for each, count in zip(read.class_names, counts[0].tolist(), strict=False) if not count]:
        warnings.warn(
            f"{name}: {len(missing)} of {len(read.class_names)} classes have no pixel in the training images, "
            f"such as {missing[0]!r}.",
            stacklevel=3,
        )


def _count_labels(name: str, samples: Sequence[Sample], num_classes: int) -> Tensor:
    """Return the number of pixels by label."""
    counts = torch.zeros(256, dtype=torch.int64)
    for index in range(len(samples)):
        labels = samples.labels(index) if isinstance(samples, MaskFiles) else samples[index][1]
        counts += labels.flatten().bincount(minlength=256)
    wrong = [label for label in counts.nonzero().flatten().tolist() if num_classes <= label != IGNORED]
    if wrong:
        raise DataError(f"{name}: labels must be below the number of classes, {num_classes}, or {IGNORED}; got {wrong[0]}.")
    return counts


def _call_factory(name: str) -> Splits | SegmentationDataset:
    """Call `package.module:factory` and check its result."""
    returned = call_factory(name)
    if isinstance(returned, SegmentationDataset):
        return returned
    expected = f"{name} must return (train, test, class_names), with pairs of a uint8 image (3, h, w) and uint8 labels (h, w)"
    try:
        train, test, class_names = returned
        pairs = [[(torch.as_tensor(image), torch.as_tensor(labels)) for image, labels in samples] for samples in (train, test)]
    except (TypeError, ValueError):
        raise DataError(f"{expected}; got {type(returned).__name__}.") from None
    for image, labels in (*pairs[0], *pairs[1]):
        is_image = image.dtype == torch.uint8 and image.dim() == 3 and image.shape[0] == 3
        if not is_image or labels.shape != image.shape[1:] or labels.is_floating_point():
            raise DataError(
                f"{expected}; got an image {tuple(image.shape)} of {image.dtype} with labels {tuple(labels.shape)} of "
                f"{labels.dtype}."
            )
        if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) <= IGNORED:
            raise DataError(f"labels of {name} must be from 0 to {IGNORED}; got {int(labels.min())} to {int(labels.max())}.")
    samples = [[(image, labels.to(torch.uint8)) for image, labels in each] for each in pairs]
    return Splits(samples[0], samples[1], tuple(str(each) for each in class_names))
