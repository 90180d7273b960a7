"""Datasets of images with objects, for detection and instance segmentation.

    ellipses                  small generated images with boxes and masks; needs no files, see `ellipses`
    nuclei  bccd  coco128     packed data sets under the data directory; see `archives`
    package.module:factory    a function that returns a `DetectionDataset`; see `make_detection_dataset`

Folders, absolute or relative to the working directory or the data directory:

    name         files                                                          masks
    coco:PATH    annotations/instances_{train,val}….json, images; see `coco`    polygons or run-length encodings
    voc:PATH     Annotations/ID.xml, JPEGImages/, ImageSets/Main/; see `voc`    no
    yolo:PATH    images/{train,val}, labels/{train,val}, data.yaml; see `yolo`  if all lines are polygons
    masks:PATH   {train,test}/ID/{images,masks}/….png; see `mask_folder`        yes, one file per object; one class

A folder without a test split is split at random, the same way in every call: 75 % train. Images without objects are kept as
negatives. Boxes are clipped to their images; objects without an area are left out. One warning counts these and other problems,
such as a class without training objects. The EXIF orientation is applied; see `image_sources`.

    >>> data = load_detection("ellipses")
    >>> len(data.train), len(data.test), data.class_names, data.has_masks
    (64, 16, ('disk', 'rod'), True)
    >>> image, objects = data.train[0]
    >>> image.shape, objects.boxes[0], int(objects.labels[0])
    (torch.Size([3, 64, 64]), tensor([ 9.,  1., 28.,  8.]), 1)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from anynorm.errors import DataError
from anynorm.io.checkpoints import call_factory
from anynorm.lab.data.folder import choose_indices, split_indices
from anynorm.lab.data.names import path_of, resolve
from anynorm.lab.data.standardization import pooled_moments
from anynorm.lab.tasks.detection.data.annotations import Problems
from anynorm.lab.tasks.detection.data.archives import ARCHIVES, read_archive
from anynorm.lab.tasks.detection.data.coco import read_coco
from anynorm.lab.tasks.detection.data.ellipses import make_ellipses
from anynorm.lab.tasks.detection.data.mask_folder import read_mask_folder
from anynorm.lab.tasks.detection.data.objects import DetectionImages, Objects, Splits
from anynorm.lab.tasks.detection.data.voc import read_voc
from anynorm.lab.tasks.detection.data.yolo import read_yolo

__all__ = ["DetectionDataset", "DetectionImages", "Objects", "load_detection", "load_detection_cached", "make_detection_dataset"]
NUM_SAMPLES = 100
"""Number of training images from which mean and standard deviation are estimated."""
Reader = Callable[[str, Problems], "Splits | DetectionDataset"]
DATASETS: dict[str, Reader] = {"ellipses": make_ellipses, **dict.fromkeys(ARCHIVES, read_archive)}
FOLDERS: dict[str, Reader] = {
    "coco": read_coco,
    "voc": read_voc,
    "yolo": read_yolo,
    "masks": read_mask_folder,
}
"""The reader of a folder, by the prefix of the dataset's name."""


@dataclass(frozen=True)
class DetectionDataset:
    """Training and test images with objects.

    Attributes:
        train: the training images.
        test: the test images.
        class_names: the names of the classes; labels are their positions.
        has_masks: whether all objects have masks.
        mean: mean of each channel, (3, 1, 1), over a fixed sample of at most 100 training images with values in [0, 1].
        std: standard deviation of each channel, (3, 1, 1), over this sample.
    """

    train: DetectionImages
    test: DetectionImages
    class_names: tuple[str, ...]
    has_masks: bool
    mean: Tensor
    std: Tensor

    @property
    def num_classes(self) -> int:
        """The number of classes, without background."""
        return len(self.class_names)


def load_detection(name: str) -> DetectionDataset:
    """Load a detection dataset by name; see `anynorm.lab.tasks.detection.data.datasets`.

    Raises:
        DataError: if the name is unknown, a file is missing or malformed, or a split has no images or no objects.
    """
    problems = Problems()
    read = resolve(name, "data set of objects", DATASETS, FOLDERS, _call_factory)(name, problems)
    if isinstance(read, DetectionDataset):
        return read
    splits, class_names = read
    if path_of(name) is not None:
        report_missing_classes(splits[0], class_names, problems)
    data = make_detection_dataset(name, splits, class_names)
    problems.warn(name)
    return data


@lru_cache(maxsize=2)
def load_detection_cached(name: str, source_hash: str = "") -> DetectionDataset:  # noqa: ARG001
    """Load a dataset once per process; `source_hash` is part of the key, so that a folder that has changed is read again."""
    return load_detection(name)


def make_detection_dataset(name: str, splits: Sequence[DetectionImages], class_names: Sequence[str]) -> DetectionDataset:
    """Make a dataset from two splits (train, then test), or from one, which is split at random.

    Args:
        name: the name of the dataset in messages.
        splits: the images of each split; see `DetectionImages.from_tensors` for images in memory.
        class_names: the names of the classes.

    Raises:
        DataError: if a split has no images, the training images have no objects, or a label is out of range.
    """
    if len(splits) == 1:
        splits = [splits[0].select(indices) for indices in split_indices(len(splits[0]))]
    train, test = splits
    for split, images in (("training", train), ("test", test)):
        if not len(images):
            raise DataError(f"{name} must have at least one {split} image; got none.")
        labels = images.labels.values
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(class_names):
            raise DataError(
                f"{name}: labels must be from 0 to {len(class_names) - 1}, the last of {len(class_names)} classes; "
                f"got {labels.min()} to {labels.max()} in the {split} images."
            )
    if not train.num_objects:
        raise DataError(f"{name} must have objects in its training images; got none in {len(train)} images.")
    has_masks = train.counts is not None and test.counts is not None
    if not has_masks:
        train, test = train.without_masks(), test.without_masks()
    sample = choose_indices(len(train), NUM_SAMPLES).tolist()
    mean, std = pooled_moments(train[index][0][None] for index in sample)
    return DetectionDataset(train, test, tuple(class_names), has_masks, mean / 255, std / 255)


def report_missing_classes(train: DetectionImages, class_names: Sequence[str], problems: Problems) -> None:
    """Report classes without training objects."""
    occurring = set(train.labels.values.tolist())
    for label, name in enumerate(class_names):
        if label not in occurring:
            problems.add("classes have no object in the training images", name)


def _call_factory(name: str, _: Problems) -> DetectionDataset:
    returned = call_factory(name)
    if not isinstance(returned, DetectionDataset):
        raise DataError(
            f"{name} must return a DetectionDataset (see anynorm.lab.make_detection_dataset); got {type(returned).__name__}."
        )
    return returned
