"""Reader of objects with one binary mask image per object, as in the 2018 Data Science Bowl.

    PATH/train/ID/images/ID.png    the image; also stage1_train
    PATH/train/ID/masks/….png      pixels other than 0 belong to the object
    PATH/test/ID/…                 also stage1_test, val or valid; or PATH/ID/… alone

All objects are of one class, `object`. Their boxes are the bounding boxes of their masks. If the test folder has no masks, as the
original stage1_test, the training images are split at random instead, with a warning.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anynorm.errors import DataError
from anynorm.io.inputs import IMAGE_SUFFIXES
from anynorm.lab.data.image_sources import ImageFiles
from anynorm.lab.data.names import find_folder
from anynorm.lab.data.ragged import Array
from anynorm.lab.tasks.detection.data.annotations import AnnotatedImages, Annotation, Problems, make_splits
from anynorm.lab.tasks.detection.data.masks import encode_mask
from anynorm.lab.tasks.detection.data.objects import Splits
from anynorm.progress import track

CLASSES = ("object",)
_TRAIN = ("train", "stage1_train")
_TEST = ("test", "stage1_test", "val", "valid")


def read_mask_folder(name: str, problems: Problems) -> Splits:
    """Read a folder with one subfolder per image, each with the subfolders `images` and `masks`.

    Args:
        name: the name of the data set, with the path of the folder.
        problems: collects objects that are left out, images without a folder of masks, and a test folder without masks.

    Returns:
        One or two splits (train, then test), and the name of the class.

    Raises:
        DataError: if files are missing or unreadable, or the size of a mask is not that of its image.
    """
    root = find_folder(name)
    train = next((root / name for name in _TRAIN if (root / name).is_dir()), root)
    folders = [train]
    for test in [root / name for name in _TEST if train != root and (root / name).is_dir()]:
        if any(test.glob("*/masks/*")):
            folders.append(test)
            break
        problems.add("folders of test images have no masks and are not used", str(test))
    return make_splits([_read_split(folder, problems) for folder in folders], problems), CLASSES


def _read_split(root: Path, problems: Problems) -> AnnotatedImages:
    folders = sorted(path.parent for path in root.glob("*/images") if path.is_dir())
    if not folders:
        raise DataError(f"{root} must have folders ID/images and ID/masks, one per image; got none.")
    paths, annotations = [], []
    for folder in track(folders, f"reading {root}"):
        images = _image_files(folder / "images")
        if len(images) != 1:
            raise DataError(f"{folder / 'images'} must contain one image; got {len(images)}.")
        paths.append(str(images[0].relative_to(root)))
        if not (folder / "masks").is_dir():
            problems.add("images have no folder of masks and are used as images without objects", str(folder))
        files = _image_files(folder / "masks")
        annotations.append([Annotation(None, 0, encode_mask(read_mask(file)), is_crowd=False, place=str(file)) for file in files])
    source = ImageFiles.from_paths(root, paths)
    return AnnotatedImages(source, [source.size(index) for index in range(len(source))], annotations)


def _image_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*") if file.suffix.lower() in IMAGE_SUFFIXES)


def read_mask(file: Path) -> Array:
    """Read a mask (h, w) of bool: whether a pixel is nonzero in a color channel; the alpha channel is ignored.

    Raises:
        DataError: if the file cannot be read.
    """
    from PIL import Image

    try:
        with Image.open(file) as image:
            pixels = np.asarray(image.convert("L") if image.mode in ("LA", "PA") else image)
    except Exception as error:  # Pillow raises many types for a file that is not an image
        raise DataError(f"cannot read the mask {file}: {type(error).__name__}: {error}.") from None
    return np.asarray(pixels != 0) if pixels.ndim == 2 else np.asarray((pixels[..., :3] != 0).any(-1))
