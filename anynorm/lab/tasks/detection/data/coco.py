"""Reader of objects in COCO format: one JSON file per split, with boxes x y width height, and polygons or encoded masks.

Annotations are searched in PATH/annotations/*.json, else PATH/*.json, else PATH/{train,valid,test}/_annotations.coco.json. Of
several files, those named instances_… are used; the training file has `train` in its name, the test file `test` or, if there is
none with annotations, `val`. Images are searched, for instances_train2017.json, in

    PATH/{train2017,images/train2017,train,images/train,images,JPEGImages}, PATH itself, and the folder of the file

Categories are those of the training file in the order of their ids, which may have gaps. The boxes of `bbox` are used, else
those of the masks. Objects with iscrowd = 1 are crowds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anynorm.errors import DataError
from anynorm.lab.data.image_sources import ImageFiles, Size
from anynorm.lab.data.names import find_folder
from anynorm.lab.tasks.detection.data.annotations import AnnotatedImages, Annotation, Problems, make_splits
from anynorm.lab.tasks.detection.data.masks import Mask, encode_mask, encode_polygons, pycocotools_mask
from anynorm.lab.tasks.detection.data.objects import Splits
from anynorm.progress import track

_OTHER_FILES = ("captions", "person_keypoints", "image_info", "panoptic", "stuff")
_NUM_PROBES = 100
"""Number of image paths that are checked to find the folder of the images."""
Content = dict[str, Any]


def read_coco(name: str, problems: Problems) -> Splits:
    """Read a folder in COCO format.

    Args:
        name: the name of the data set, with the path of the folder.
        problems: collects objects that are changed or left out.

    Returns:
        One or two splits (train, then test), and the names of the classes.

    Raises:
        DataError: if files are missing or malformed, or refer to images or categories that do not exist.
    """
    root = find_folder(name)
    contents = _load_splits(root)
    names = _category_names(contents)
    labels = {number: label for label, number in enumerate(sorted(names))}
    splits = [_read_split(root, file, content, labels, problems) for file, content in contents]
    return make_splits(splits, problems), tuple(names[number] for number in labels)


# Files ------------------------------------------------------------------------------------------------------------------------


def _load_splits(root: Path) -> list[tuple[Path, Content]]:
    """Load the training file and the test file, or the only file."""
    files = {file: file.stem for pattern in ("annotations/*.json", "*.json") for file in sorted(root.glob(pattern))}
    in_folder = {file: name for file, name in files.items() if file.parent != root}
    files = in_folder or files or {file: file.parent.name for file in sorted(root.glob("*/_annotations.coco.json"))}
    instances = {file: name for file, name in files.items() if name.startswith("instances")}
    files = instances or {file: name for file, name in files.items() if not name.startswith(_OTHER_FILES)}
    if not files:
        raise DataError(f"{root} must have annotations/instances_train….json, or another .json of COCO; got none.")
    train = [file for file, name in files.items() if "train" in name.lower()]
    if len(files) == 1:
        train = list(files)
    if len(train) != 1:
        listed = " ".join(file.name for file in train or files)
        raise DataError(f"{root} must have one training file, with `train` in its name; got {len(train)}. Files: {listed}.")
    contents = [(train[0], _load(train[0], needs_annotations=True))]
    for split in ("test", "val"):
        tests = [file for file, name in files.items() if split in name.lower() and file not in train]
        if len(tests) > 1:
            raise DataError(f"{root} must have at most one {split} file; got {' '.join(file.name for file in tests)}.")
        if tests and "annotations" in (content := _load(tests[0], needs_annotations=False)):
            return [*contents, (tests[0], content)]
    return contents


def _load(file: Path, *, needs_annotations: bool) -> Content:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{file} must be a JSON file of COCO: {error}.") from None
    keys = ("images", "categories", *(["annotations"] if needs_annotations else []))
    for key in keys:
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise DataError(f"{file} must be an object with the lists {', '.join(keys)}; {key} is missing or not a list.")
    checked: Content = content
    return checked


def _category_names(contents: Sequence[tuple[Path, Content]]) -> dict[int, str]:
    """Return the names of the categories of the training file by id; the test file must use the same ids."""
    tables = []
    for file, content in contents:
        try:
            tables.append({int(each["id"]): str(each["name"]) for each in content["categories"]})
        except (TypeError, KeyError, ValueError):
            raise DataError(f"{file}: each category must have an id and a name.") from None
        if len(tables[-1]) < len(content["categories"]):
            raise DataError(f"{file}: the ids of categories must differ.")
    for table in tables[1:]:
        for number, name in table.items():
            if tables[0].get(number, name) != name:
                raise DataError(
                    f"category {number} must be the same in all files; got {tables[0][number]!r} in {contents[0][0]} and "
                    f"{name!r} in {contents[1][0]}."
                )
    return tables[0]


# Splits -----------------------------------------------------------------------------------------------------------------------


def _read_split(root: Path, file: Path, content: Content, labels: dict[int, int], problems: Problems) -> AnnotatedImages:
    try:
        numbers = {each["id"]: index for index, each in enumerate(content["images"])}
        paths = [str(each["file_name"]) for each in content["images"]]
    except (TypeError, KeyError):
        raise DataError(f"{file}: each image must have an id and a file_name.") from None
    if len(numbers) < len(paths):
        raise DataError(f"{file}: the ids of images must differ; got {len(paths)} images with {len(numbers)} ids.")
    source = ImageFiles.from_paths(_find_images(root, file, paths), paths)
    recorded = [(each.get("height"), each.get("width")) for each in content["images"]]
    sizes: list[Size] = [(int(size[0]), int(size[1])) if all(size) else source.size(index) for index, size in enumerate(recorded)]
    rows: list[list[Annotation]] = [[] for _ in paths]
    _check_references(file, content["annotations"], "image_id", numbers, "images")
    _check_references(file, content["annotations"], "category_id", labels, "categories")
    for each in track(content["annotations"], f"reading {file.name}"):
        index = numbers[each["image_id"]]
        place = f"{file.name}, annotation {each.get('id', '?')}"
        rows[index].append(_read_annotation(each, labels[each["category_id"]], sizes[index], place, problems))
    return AnnotatedImages(source, sizes, rows)


def _find_images(root: Path, file: Path, paths: list[str]) -> Path:
    """Return the folder to which the paths of images are relative, and check that all of them exist."""
    stem = re.sub(r"^instances_", "", file.stem)
    split = next((each for each in ("train", "test", "val") if each in stem.lower()), stem)
    names = [name for each in (stem, split) for name in (each, f"images/{each}")]
    folders = [root / name for name in (*names, "images", "JPEGImages", ".")] + [file.parent]
    counts = [sum((folder / path).is_file() for path in paths[:_NUM_PROBES]) for folder in folders]
    folder = folders[counts.index(max(counts))]
    missing = [path for path in paths if not (folder / path).is_file()]
    if missing:
        searched = f"{folder}" if max(counts) else ", ".join(map(str, dict.fromkeys(folders)))
        raise DataError(
            f"{file} names {len(paths)} images, of which {len(missing)} do not exist, such as {missing[0]}. Searched: {searched}."
        )
    return folder


def _check_references(file: Path, annotations: list[Any], key: str, known: dict[Any, int], what: str) -> None:
    """Check that all annotations refer to an image or a category of the file."""
    unknown = [
        (index, each.get(key) if isinstance(each, dict) else None)
        for index, each in enumerate(annotations)
        if not isinstance(each, dict) or each.get(key) not in known
    ]
    if unknown:
        index, value = unknown[0]
        raise DataError(
            f"{file}: the {key} of annotations must be the id of one of {len(known)} {what}; got {len(unknown)} others, such as "
            f"{value} (annotations[{index}])."
        )


def _read_annotation(each: Content, label: int, size: Size, place: str, problems: Problems) -> Annotation:
    box, segmentation = each.get("bbox"), each.get("segmentation")
    try:
        if box is not None:
            x, y, width, height = map(float, box)
            box = [x, y, x + width, y + height]
        mask = read_segmentation(segmentation, size, place, problems) if segmentation else None
    except (TypeError, ValueError, KeyError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{place}: bbox must be x y width height, and segmentation polygons or an encoded mask: {error}."
        ) from None
    if isinstance(segmentation, list) and segmentation and not any(len(polygon) >= 6 for polygon in segmentation):
        box = None  # the object has no area
    if box is None and mask is None:
        raise DataError(f"{place} must have a bbox or a segmentation; got neither.")
    return Annotation(box, label, mask, bool(each.get("iscrowd", 0)), place)


def read_segmentation(segmentation: Any, size: Size, place: str, problems: Problems) -> Mask:
    """Return the mask of polygons [[x1, y1, …], …], or of a run-length encoding whose counts are numbers or a string.

    Raises:
        DataError: if a polygon has an odd number of coordinates, or the counts do not sum to h · w.
    """
    if isinstance(segmentation, list):
        if any(len(polygon) % 2 for polygon in segmentation):
            raise DataError(f"{place}: a polygon must have pairs of coordinates; got an odd number of values.")
        polygons = [[float(value) for value in polygon] for polygon in segmentation if len(polygon) >= 6]
        if len(polygons) < len(segmentation):  # pycocotools would read 4 values as a box
            problems.add("objects have polygons of fewer than 3 points, which were left out", place)
        return encode_polygons(polygons, size) if polygons else encode_mask(np.zeros(size))
    height, width = map(int, segmentation["size"])
    counts = segmentation["counts"]
    if isinstance(counts, str):
        return {"size": [height, width], "counts": counts.encode()}
    if sum(counts) != height * width:
        raise DataError(f"{place}: the counts of a mask must have the sum {height} · {width}; got {sum(counts)}.")
    mask: Mask = pycocotools_mask().frPyObjects({"size": [height, width], "counts": counts}, height, width)
    return mask
