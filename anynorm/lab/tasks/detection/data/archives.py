"""Readers of detection data sets that are packed in one .npz file under the data directory.

    nuclei/nuclei_dsb2018.npz    2018 Data Science Bowl with corrected annotations: boxes and masks of nuclei
    bccd/bccd_320x240.npz        blood cells: boxes of red and white cells and platelets; the validation images are not used
    coco128/coco128_320.npz      the first 128 images of COCO's train2017 (train) and val2017 (test): boxes of 80 classes

Each file has the bytes of its images (`images`, `offsets`) and the `split` of each: 0 is train, the largest number is test.
Objects are `boxes` (x1 y1 x2 y2 in pixels), `labels` and `box_image`; those of nuclei are flattened and concatenated label maps.
"""

from __future__ import annotations

import numpy as np

from anynorm.errors import DataError
from anynorm.lab.data.download import data_dir
from anynorm.lab.data.image_sources import EncodedImages, Size
from anynorm.lab.data.npz import Arrays, load_npz
from anynorm.lab.tasks.detection.data.annotations import AnnotatedImages, Annotation, Problems, make_splits
from anynorm.lab.tasks.detection.data.masks import encode_label_map
from anynorm.lab.tasks.detection.data.objects import Splits

ARCHIVES = {
    "nuclei": "nuclei/nuclei_dsb2018.npz",
    "bccd": "bccd/bccd_320x240.npz",
    "coco128": "coco128/coco128_320.npz",
}
"""The path of each data set, relative to the data directory."""
_COMMON = ("images", "offsets", "split")
_BOXES = ("boxes", "labels", "box_image", "classes")
_NUCLEI = ("labels", "shapes")


def read_archive(name: str, problems: Problems) -> Splits:
    """Read a data set of `ARCHIVES`.

    Returns:
        The training and the test images, and the names of the classes.

    Raises:
        DataError: if the file is missing or does not have the required arrays.
    """
    path = data_dir() / ARCHIVES[name]
    if not path.exists():
        raise DataError(
            f"{name} needs the file {path}, which does not exist. Put it there, or set ANYNORM_DATA to the directory that has "
            f"{ARCHIVES[name]}. Own images in other forms: coco:PATH, voc:PATH, yolo:PATH, masks:PATH."
        )
    arrays = load_npz(path, *_COMMON, *(_NUCLEI if name == "nuclei" else _BOXES))
    source = EncodedImages.from_bytes(name, arrays["images"], arrays["offsets"])
    if name == "nuclei":
        sizes: list[Size] = [(int(height), int(width)) for height, width in arrays["shapes"]]
        classes: tuple[str, ...] = ("nucleus",)
        annotations = _nuclei(arrays, sizes)
    else:
        sizes = [source.size(index) for index in range(len(source))]
        classes = tuple(map(str, arrays["classes"]))
        annotations = _boxes(arrays, source)
    (images,) = make_splits([AnnotatedImages(source, sizes, annotations)], problems)
    split = arrays["split"]
    return [images.select(np.flatnonzero(split == number).tolist()) for number in (0, split.max())], classes


def _nuclei(arrays: Arrays, sizes: list[Size]) -> list[list[Annotation]]:
    ends = np.cumsum([height * width for height, width in sizes])
    label_maps = [flat.reshape(size) for size, flat in zip(sizes, np.split(arrays["labels"], ends[:-1]), strict=True)]
    return [
        [Annotation(None, 0, mask, is_crowd=False, place=f"nuclei, image {index}") for mask in encode_label_map(label_map)]
        for index, label_map in enumerate(label_maps)
    ]


def _boxes(arrays: Arrays, source: EncodedImages) -> list[list[Annotation]]:
    rows: list[list[Annotation]] = [[] for _ in range(len(source))]
    for box, label, image in zip(arrays["boxes"], arrays["labels"], arrays["box_image"], strict=True):
        rows[image].append(Annotation(box, int(label), None, is_crowd=False, place=source.name(image)))
    return rows
