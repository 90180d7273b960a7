"""Reader of objects in YOLO format: one text file per image, one line per object, coordinates relative to the image size.

    CLASS cx cy width height           a box by its center
    CLASS x1 y1 x2 y2 x3 y3 …          a polygon of at least 3 points; its box is the smallest around it

    PATH/images/train/…, PATH/labels/train/…    also val, valid or test, and train2017; or PATH/images and PATH/labels alone
    PATH/train/images/…, PATH/train/labels/…    with the same names of splits
    PATH/data.yaml                              `names:` as a list or as numbers and names; any .yaml with it, or classes.txt

The test split is `test` if it has labels, else `val` or `valid`. Images without a file of labels have no objects; a warning
counts them, because a file may be missing by mistake. Without names, classes are named by their numbers.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from anynorm.errors import DataError
from anynorm.io.inputs import IMAGE_SUFFIXES
from anynorm.lab.data.image_sources import ImageFiles, Size
from anynorm.lab.data.names import find_folder
from anynorm.lab.tasks.detection.data.annotations import AnnotatedImages, Annotation, Problems, make_splits
from anynorm.lab.tasks.detection.data.masks import encode_polygons
from anynorm.lab.tasks.detection.data.objects import Splits
from anynorm.progress import track

Folders = tuple[Path, Path]
"""The folders of the images and of the labels of a split."""
_LIMITS = (-1.0, 2.0)
"""Coordinates outside this range cannot be relative to the image size, even if the object is cut by the border."""


def read_yolo(name: str, problems: Problems) -> Splits:
    """Read a folder in YOLO format.

    Args:
        name: the name of the data set, with the path of the folder.
        problems: collects objects that are changed or left out, and images without a file of labels.

    Returns:
        One or two splits (train, then test), and the names of the classes.

    Raises:
        DataError: if files are missing, or a line is malformed.
    """
    root = find_folder(name)
    names = read_names(root)
    splits = [_read_split(images, labels, names, problems) for images, labels in _find_folders(root)]
    if names is None:
        largest = max((each.label for split in splits for row in split.annotations for each in row), default=0)
        names = tuple(map(str, range(largest + 1)))
    return make_splits(splits, problems), names


def _find_folders(root: Path) -> list[Folders]:
    """Return the folders of the training and the test split, or of all images."""
    pairs = [
        (child.name, (child, root / "labels" / child.name))
        for child in sorted((root / "images").glob("*"))
        if child.is_dir() and (root / "labels" / child.name).is_dir()
    ]
    pairs += [
        (child.name, (child / "images", child / "labels"))
        for child in sorted(root.glob("*"))
        if (child / "images").is_dir() and (child / "labels").is_dir()
    ]
    by_split = {split: [folders for name, folders in pairs if name.startswith(split)] for split in ("train", "test", "val")}
    if by_split["train"]:
        tests = [folders for folders in by_split["test"] if any(folders[1].rglob("*.txt"))] or by_split["val"]
        return [by_split["train"][0], *tests[:1]]
    if (root / "images").is_dir() and (root / "labels").is_dir():
        return [(root / "images", root / "labels")]
    raise DataError(f"{root} must have images/train and labels/train, train/images and train/labels, or images and labels.")


def _read_split(folder: Path, labels: Path, names: tuple[str, ...] | None, problems: Problems) -> AnnotatedImages:
    paths = sorted(file.relative_to(folder) for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
    if not paths:
        raise DataError(f"{folder} must contain images ({' '.join(IMAGE_SUFFIXES)}); got none.")
    files = [labels / path.with_suffix(".txt") for path in paths]
    lost = [path for path, file in zip(paths, files, strict=True) if not file.is_file()]
    if len(lost) == len(paths):
        raise DataError(f"{labels} must have a .txt file for the images of {folder}; got none for {len(paths)} images.")
    for path in lost:
        problems.add("images have no file of labels and are used as images without objects", str(folder / path))
    for file in sorted(set(labels.rglob("*.txt")) - {*files, labels / "classes.txt"}):
        problems.add("files of labels have no image and were left out", str(file))
    source = ImageFiles.from_paths(folder, map(str, paths))
    sizes = [source.size(index) for index in range(len(source))]
    pairs = track(list(zip(files, sizes, strict=True)), f"reading {labels}")
    return AnnotatedImages(source, sizes, [_read_file(file, size, names) if file.is_file() else [] for file, size in pairs])


def _read_file(file: Path, size: Size, names: tuple[str, ...] | None) -> list[Annotation]:
    lines = [(number, line.split()) for number, line in enumerate(file.read_text().splitlines(), 1)]
    return [_read_line(values, size, names, f"{file}, line {number}") for number, values in lines if values]


def _read_line(values: list[str], size: Size, names: tuple[str, ...] | None, place: str) -> Annotation:
    try:
        label, numbers = int(values[0]), [float(value) for value in values[1:]]
    except ValueError:
        raise DataError(f"{place} must be the number of a class and coordinates; got {' '.join(values)!r}.") from None
    if label < 0 or (names is not None and label >= len(names)):
        usable = "at least 0" if names is None else f"from 0 to {len(names) - 1}, the last of {len(names)} classes"
        raise DataError(f"{place}: the class must be {usable}; got {label}.")
    if len(numbers) != 4 and (len(numbers) < 6 or len(numbers) % 2):
        raise DataError(f"{place} must have 4 coordinates, or pairs of at least 3 points; got {len(numbers)} values.")
    if not all(math.isfinite(value) and _LIMITS[0] <= value <= _LIMITS[1] for value in numbers):
        raise DataError(f"{place}: coordinates must be relative to the size of the image, in [0, 1]; got {' '.join(values[1:])}.")
    height, width = size
    if len(numbers) == 4:
        x, y, w, h = numbers
        box = [(x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height]
        return Annotation(box, label, None, is_crowd=False, place=place)
    xs, ys = [x * width for x in numbers[::2]], [y * height for y in numbers[1::2]]
    mask = encode_polygons([[value for point in zip(xs, ys, strict=True) for value in point]], size)
    return Annotation([min(xs), min(ys), max(xs), max(ys)], label, mask, is_crowd=False, place=place)


# Names ------------------------------------------------------------------------------------------------------------------------


def read_names(root: Path) -> tuple[str, ...] | None:
    """Return the names of the classes of data.yaml, another .yaml file or classes.txt; None if no file has names.

    Raises:
        DataError: if the `names` of a .yaml file are neither `[a, b]` nor lines `- a` nor lines `0: a`.
    """
    files = [root / "data.yaml", *sorted(root.glob("*.yaml")), *sorted(root.glob("*.yml"))]
    for file in [file for file in files if file.is_file()]:
        names = parse_names(file)
        if names is not None:
            return names
    for file in (root / "classes.txt", root / "labels" / "classes.txt"):
        if file.is_file():
            return tuple(line.strip() for line in file.read_text().splitlines() if line.strip())
    return None


def parse_names(file: Path) -> tuple[str, ...] | None:
    """Return the `names` of a .yaml file, None if it has none; see `read_names`."""
    text = re.sub(r"(^|\s)#.*", "", file.read_text(), flags=re.MULTILINE)
    match = re.search(r"^names:[ \t]*(.*(?:\n(?:[ \t-].*|[ \t]*))*)", text, flags=re.MULTILINE)
    if match is None:
        return None
    value = match[1].strip()
    if value[:1] in "[{" and value[-1:] in "]}":
        entries = re.findall(r"""(?:[^,"']|"[^"]*"|'[^']*')+""", value[1:-1])
    else:
        entries = value.splitlines()
    entries = [entry.strip() for entry in entries if entry.strip()]
    is_table = value[:1] == "{" or (value[:1] != "[" and not any(entry.startswith("- ") for entry in entries))
    names: dict[int, str] = {}
    for number, entry in enumerate(entries):
        key, _, name = entry.partition(":") if is_table else (str(number), "", entry.removeprefix("- "))
        if not key.strip().isdigit() or not _unquote(name):
            raise DataError(f"{file}: names must be [a, b, …], lines `- a`, or lines `0: a`; got {entry!r}.")
        names[int(key)] = _unquote(name)
    if not names or sorted(names) != list(range(len(names))):
        raise DataError(f"{file}: names must be those of the classes 0, 1, …; got the numbers {sorted(names)}.")
    return tuple(names[number] for number in sorted(names))


def _unquote(text: str) -> str:
    stripped = text.strip()
    is_quoted = len(stripped) > 1 and stripped[0] == stripped[-1] and stripped[0] in "'\""
    return stripped[1:-1] if is_quoted else stripped
