"""Reader of objects in PASCAL VOC format: one XML file per image.

    PATH/Annotations/ID.xml    name, difficult and bndbox of each object, and the size of the image
    PATH/JPEGImages/ID.jpg     the image; also images/, and other formats
    PATH/ImageSets/Main/       lists of IDs: trainval.txt and test.txt if test.txt has annotations, else train.txt and val.txt

Pixels are counted from 1 and the last one belongs to the object: x1 = xmin − 1, y1 = ymin − 1, x2 = xmax, y2 = ymax. Objects that
are `difficult` become crowds: they are ignored in training, and detections of them are neither right nor wrong in the evaluation.
Classes are all names in the annotations, in alphabetical order.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from anynorm.errors import DataError
from anynorm.io.inputs import IMAGE_SUFFIXES
from anynorm.lab.data.image_sources import ImageFiles, Size
from anynorm.lab.data.names import find_folder
from anynorm.lab.tasks.detection.data.annotations import AnnotatedImages, Annotation, Problems, make_splits
from anynorm.lab.tasks.detection.data.objects import Splits
from anynorm.progress import track

_CORNERS = ("xmin", "ymin", "xmax", "ymax")


class _Object(NamedTuple):
    name: str
    box: list[float]
    is_difficult: bool


class _ImageObjects(NamedTuple):
    file: Path
    size: Size | None
    objects: list[_Object]


def read_voc(name: str, problems: Problems) -> Splits:
    """Read a folder in PASCAL VOC format; arguments and result as for `anynorm.lab.tasks.detection.data.coco.read_coco`.

    Raises:
        DataError: if files are missing or malformed.
    """
    root = find_folder(name)
    folder = next((root / name for name in ("JPEGImages", "images") if (root / name).is_dir()), None)
    if folder is None or not (root / "Annotations").is_dir():
        inner = sorted(path.parent.name for path in root.glob("*/Annotations"))
        hint = f" Use a folder in it: {' '.join(inner)}." if inner else ""
        raise DataError(f"{root} must have the folders Annotations and JPEGImages of PASCAL VOC.{hint}")
    images = {path.stem: path.name for path in sorted(folder.iterdir()) if path.suffix.lower() in IMAGE_SUFFIXES}
    splits = [_read_split(root, ids, images) for ids in _find_ids(root)]
    names = sorted({each.name for split in splits for row in split for each in row.objects})
    labels = {name: label for label, name in enumerate(names)}
    return make_splits([_annotate(split, folder, images, labels) for split in splits], problems), tuple(names)


def _find_ids(root: Path) -> list[list[str]]:
    """Return the IDs of the training and the test images by the lists in ImageSets/Main; without two lists, one list of IDs."""
    lists = root / "ImageSets" / "Main"

    def read(name: str) -> list[str]:
        path = lists / f"{name}.txt"
        return [line.split()[0] for line in path.read_text().splitlines() if line.strip()] if path.is_file() else []

    test, train = read("test"), read("trainval") or read("train")
    if train and test and (root / "Annotations" / f"{test[0]}.xml").is_file():
        return [train, test]
    if read("train") and read("val"):
        return [read("train"), read("val")]
    ids = train or sorted(path.stem for path in (root / "Annotations").glob("*.xml"))
    if not ids:
        raise DataError(f"{root / 'Annotations'} must contain .xml files; got none.")
    return [ids]


def _read_split(root: Path, ids: list[str], images: dict[str, str]) -> list[_ImageObjects]:
    files = {each: root / "Annotations" / f"{each}.xml" for each in ids}
    for what, missing in (
        ("annotations", [each for each, file in files.items() if not file.is_file()]),
        ("images", [each for each in ids if each not in images]),
    ):
        if missing:
            raise DataError(f"{root} must have {what} of {len(ids)} IDs; {len(missing)} are missing, such as {missing[0]!r}.")
    return [_read_file(file) for file in track(list(files.values()), f"reading {root.name}")]


def _read_file(file: Path) -> _ImageObjects:
    try:
        tree = ElementTree.parse(file).getroot()
    except (ElementTree.ParseError, OSError) as error:
        raise DataError(f"{file} must be an XML file of PASCAL VOC: {error}.") from None
    objects = []
    for number, element in enumerate(tree.iter("object"), 1):
        try:
            xmin, ymin, xmax, ymax = (float(element.findtext(f"bndbox/{corner}", "")) for corner in _CORNERS)
            name = element.findtext("name", "").strip()
            is_difficult = bool(int(element.findtext("difficult") or 0))
        except ValueError as error:
            raise DataError(f"{file}, object {number}: bndbox must have the numbers {' '.join(_CORNERS)}: {error}.") from None
        if not name:
            raise DataError(f"{file}, object {number} must have a name; got none.")
        objects.append(_Object(name, [xmin - 1, ymin - 1, xmax, ymax], is_difficult))
    try:
        height, width = (int(float(tree.findtext(f"size/{side}") or 0)) for side in ("height", "width"))
    except ValueError as error:
        raise DataError(f"{file}: the size must have the numbers width and height: {error}.") from None
    return _ImageObjects(file, (height, width) if height and width else None, objects)


def _annotate(split: list[_ImageObjects], folder: Path, images: dict[str, str], labels: dict[str, int]) -> AnnotatedImages:
    source = ImageFiles.from_paths(folder, [images[row.file.stem] for row in split])
    annotations = [
        [
            Annotation(each.box, labels[each.name], None, each.is_difficult, f"{row.file.name}, object {number}")
            for number, each in enumerate(row.objects, 1)
        ]
        for row in split
    ]
    return AnnotatedImages(source, [row.size or source.size(index) for index, row in enumerate(split)], annotations)
