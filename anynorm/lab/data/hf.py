"""Datasets of the Hugging Face library `datasets`: `hf:NAME`, a name on the hub or a folder written by `save_to_disk`.

A dataset must have a column of images, a column of labels (classes or integers), a split `train`, and possibly a split `test` or
`validation`. Its rows are read from memory-mapped files when they are used.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anynorm.errors import DataError
from anynorm.lab.data.image_sources import ImageSource
from anynorm.lab.data.stream import StreamedDataset, make_streamed

if TYPE_CHECKING:
    from PIL.Image import Image

TEST_SPLITS = ("test", "validation", "valid", "val")


@dataclass(frozen=True, eq=False)
class ImageRows(ImageSource):
    """Images and labels in rows of a Hugging Face dataset.

    Attributes:
        rows: A `datasets.Dataset` with a single column of encoded images.
    """

    rows: Any

    def open(self, index: int) -> Image:
        """Open an image. Pillow decodes it when its pixels are used."""
        from PIL import Image

        (image,) = self.rows[int(self.indices[index])].values()
        return Image.open(image["path"] if image["bytes"] is None else io.BytesIO(image["bytes"]))

    def name(self, index: int) -> str:
        """Return the name of the dataset and the number of the row."""
        return f"row {self.indices[index]} of {self.root}"


def load_hf(name: str, image_size: int, *, skip_unreadable: bool = False) -> StreamedDataset:
    """Load the images of `hf:NAME`. The training split is split at random if no test split has labels (hidden labels are −1).

    Args:
        name: `hf:NAME`: a name on the Hugging Face hub, or a folder written by `save_to_disk`.
        image_size: Height and width of the test images.
        skip_unreadable: Decode every image once, name those that cannot be decoded on stderr, and leave them out.

    Raises:
        DataError: if `datasets` is not installed, the dataset does not exist, or it lacks the required splits or columns.
    """
    loaded = _load(name)
    splits = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
    if "train" not in splits:
        raise DataError(f"{name} must have a split train; got: {' '.join(splits)}.")
    train, class_names = _make_rows(name, "train", splits["train"])
    if len(train) and train.labels.min() < 0:
        raise DataError(f"the labels of {train.root} must be at least 0; got {train.labels.min()}.")
    candidates = (_make_rows(name, split, splits[split])[0] for split in TEST_SPLITS if split in splits)
    test = [rows for rows in candidates if len(rows) and rows.labels.min() >= 0][:1]
    largest = max(int(rows.labels.max(initial=-1)) for rows in (train, *test))
    return make_streamed([train, *test], max(class_names, largest + 1), image_size, skip_unreadable=skip_unreadable)


def _load(name: str) -> Any:
    """Load a dataset from disk or from the hub."""
    try:
        import datasets
    except ImportError:
        raise DataError(f"{name} needs the package datasets: pip install 'anynorm[hf]'.") from None
    path = name.partition(":")[2]
    try:
        return datasets.load_from_disk(path) if Path(path).is_dir() else datasets.load_dataset(path)
    except Exception as error:  # of the network, of the file system, of pyarrow, and of the library itself
        raise DataError(
            f"cannot load {name}: {type(error).__name__}: {error}. NAME must be a dataset on the Hugging Face hub, "
            "or a folder written by save_to_disk."
        ) from None


def _make_rows(name: str, split: str, dataset: Any) -> tuple[ImageRows, int]:
    """Return the images and labels of a split, and the number of its named classes."""
    import datasets

    features = dataset.features
    images = [column for column, feature in features.items() if isinstance(feature, datasets.Image)]
    classes = [column for column, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    integers = [column for column, feature in features.items() if "int" in str(getattr(feature, "dtype", ""))]
    labels = sorted([*classes, *integers], key=lambda column: column != "label")  # the column "label" first, if it exists
    if not images or not labels:
        columns = ", ".join(f"{column} ({type(feature).__name__})" for column, feature in features.items())
        raise DataError(
            f"{name}, split {split}, must have a column of type Image and a column of labels of type ClassLabel or integer; "
            f"got {columns}. Convert it with cast_column and save it with save_to_disk."
        )
    image = "image" if "image" in images else images[0]
    rows = dataset.with_format(None).select_columns([image]).cast_column(image, datasets.Image(decode=False))
    values = np.asarray(dataset.with_format("numpy").select_columns([labels[0]])[:][labels[0]], np.int64)
    num_classes = features[labels[0]].num_classes if labels[0] in classes else 0
    return ImageRows(f"{name}, split {split}", np.arange(len(rows)), values, rows), num_classes
