"""Readers of data sets with several domains, from the files of their own distributions under the data directory.

    usps/       usps.bz2 and usps.t.bz2 (downloaded if missing), usps.h5, or usps_16x16.npz            16 × 16, gray
    mnist-m     made from MNIST and patches of photographs, as by Ganin et al. (2016): |patch − digit|    28 × 28, RGB
                bsds500/bsds_train_full.npz, or the folder BSR/BSDS500/data/images/train of BSDS500
    pacs/       DOMAIN/CLASS/…, or pacs_64x64.npz; domains art_painting cartoon photo sketch
    office31/   DOMAIN/images/CLASS/… or DOMAIN/CLASS/…; domains amazon dslr webcam

    digits-faded    scikit-learn's digits with half of the contrast, on a brighter ground; needs no files

Each returns uint8 images (n, c, h, w) and labels (n,). PACS and Office-31 have no test split.
"""

from __future__ import annotations

import bz2
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.lab.data import readers
from anynorm.lab.data.download import RemoteFile, data_dir, fetch_file
from anynorm.lab.data.folder import class_names, read_folder
from anynorm.lab.data.image_sources import EncodedImages, ImageFiles, ImageSource
from anynorm.lab.data.npz import load_npz
from anynorm.lab.data.transforms import central_square, to_pixels

Split = tuple[Tensor, Tensor]
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/"
_USPS = {
    "train": RemoteFile(_LIBSVM + "usps.bz2", "ec16c51db3855ca6c91edd34d0e9b197", "usps/usps.bz2"),
    "test": RemoteFile(_LIBSVM + "usps.t.bz2", "8ea070ee2aca1ac39742fdd1ef5ed118", "usps/usps.t.bz2"),
}
_BSDS = "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/resources.html"
COLLECTIONS = {
    "pacs": ("art_painting", "cartoon", "photo", "sketch"),
    "office31": ("amazon", "dslr", "webcam"),
}
"""The domains of the data sets that are named DATASET/DOMAIN."""
_SOURCES = {
    "pacs": "Download PACS from https://domaingeneralization.github.io",
    "office31": "Download Office-31 from https://faculty.cc.gatech.edu/~judy/domainadapt",
}


def faded_digits() -> Split:
    """Return the digits of scikit-learn in a second domain: 60 + x / 2."""
    images, labels = readers.digits()
    return 60 + images // 2, labels


# USPS -------------------------------------------------------------------------------------------------------------------------


def usps(split: str) -> Split:
    """Read the 7291 `train` or 2007 `test` images of USPS; black is 0 and white 255."""
    folder = data_dir() / "usps"
    if (folder / "usps_16x16.npz").exists():
        arrays = load_npz(folder / "usps_16x16.npz", f"x_{split}", f"y_{split}", "scale")
        pixels, labels = arrays[f"x_{split}"] / arrays["scale"], arrays[f"y_{split}"]
    elif (folder / "usps.h5").exists() and not (folder / "usps.bz2").exists():
        pixels, labels = _read_h5(folder / "usps.h5", split)
    else:
        pixels, labels = _read_libsvm(fetch_file(_USPS[split].path, _USPS[split]))
    images = torch.from_numpy((pixels.reshape(-1, 1, 16, 16) * 255).round().clip(0, 255).astype(np.uint8))
    return images, torch.from_numpy(labels.astype(np.int64))


def _read_libsvm(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Read lines with a label from 1 to 10 and 256 entries INDEX:VALUE in [−1, 1]; return pixels in [0, 1] and labels from 0."""
    try:
        rows = [line.split() for line in bz2.decompress(path.read_bytes()).decode().splitlines()]
        labels = np.array([round(float(row[0])) - 1 for row in rows])
        pixels = np.array([[float(entry.partition(":")[2]) for entry in row[1:]] for row in rows])
    except (OSError, ValueError, IndexError, EOFError) as error:
        raise DataError(f"cannot read {path}: {error}. Delete it and run again to download it.") from None
    if pixels.ndim != 2 or pixels.shape[1] != 256:
        raise DataError(f"{path} must have 256 values per line; got an array of shape {pixels.shape}. Delete it and run again.")
    return (pixels + 1) / 2, labels


def _read_h5(path: Path, split: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Read the arrays `data` (n, 256) in [0, 1] and `target` from a group of an HDF5 file."""
    try:
        h5py = import_module("h5py")
    except ImportError:
        raise DataError(f"{path} needs h5py: pip install h5py. Or delete it: usps.bz2 is then downloaded.") from None
    with h5py.File(path, "r") as file:
        return np.asarray(file[split]["data"]), np.asarray(file[split]["target"])


# MNIST-M ----------------------------------------------------------------------------------------------------------------------


def mnist_m(split: str) -> Split:
    """Make MNIST-M: |patch − digit| per color channel, with one random patch of a photograph per digit.

    Patches are the same in every call. They are not those of the authors' file, which used the same photographs.
    """
    digits, labels = readers.mnist(split)
    photos = _bsds_photos()
    generator = np.random.default_rng({"train": 0, "test": 1}[split])
    size = digits.shape[-1]
    images = np.empty((len(digits), 3, size, size), np.uint8)
    for image, digit, number in zip(images, digits.numpy(), generator.integers(len(photos), size=len(digits)), strict=True):
        photo = photos[number]
        top, left = (int(generator.integers(side - size + 1)) for side in photo.shape[1:])
        image[:] = np.abs(photo[:, top : top + size, left : left + size].astype(np.int16) - digit)
    return torch.from_numpy(images), labels


def _bsds_photos() -> list[npt.NDArray[np.uint8]]:
    """Return the 200 training photographs of BSDS500 as (3, h, w)."""
    packed, folder = data_dir() / "bsds500" / "bsds_train_full.npz", "BSR/BSDS500/data/images/train"
    if packed.exists():
        arrays = load_npz(packed, "bytes", "offsets")
        source: ImageSource = EncodedImages.from_bytes(str(packed), arrays["bytes"], arrays["offsets"])
    else:
        found = [*data_dir().glob(f"{folder}/*.jpg"), *data_dir().glob(f"bsds500/{folder}/*.jpg")]
        source = ImageFiles.from_paths(data_dir(), [path.relative_to(data_dir()) for path in sorted(found)])
    if not len(source):
        raise DataError(
            f"mnist-m needs the photographs of BSDS500: {folder}/*.jpg or bsds500/{packed.name} under {data_dir()}. "
            f"Download BSDS500 from {_BSDS} and unpack it there."
        )
    return [source.read(index).numpy() for index in range(len(source))]


# PACS and Office-31 -----------------------------------------------------------------------------------------------------------


class DomainImages(NamedTuple):
    """The images of a domain, their labels, and the names of the classes."""

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]


def is_collection(name: str) -> bool:
    """Whether a name has the form DATASET/DOMAIN of a data set of `COLLECTIONS`."""
    return name.partition("/")[0] in COLLECTIONS


def read_collection(name: str, image_size: int, *, skip_unreadable: bool = False) -> DomainImages:
    """Read one domain of PACS or Office-31.

    Args:
        name: such as `pacs/photo` or `office31/amazon`.
        image_size: images are cropped to their central square and resized to image_size × image_size.
        skip_unreadable: leave out images that cannot be decoded.

    Raises:
        DataError: if the domain is unknown, or its files are missing.
    """
    dataset, _, domain = name.partition("/")
    if domain not in COLLECTIONS[dataset]:
        usable = " ".join(f"{dataset}/{each}" for each in COLLECTIONS[dataset])
        raise DataError(f"{dataset} has no domain {domain!r}. Usable: {usable}.")
    folder, packed = data_dir() / dataset / domain, data_dir() / dataset / f"{dataset}_64x64.npz"
    if not folder.is_dir() and packed.exists():
        return _read_packed(packed, domain, image_size)
    if not folder.is_dir():
        raise DataError(f"{name} must be a folder with one subfolder per class; {folder} does not exist. {_SOURCES[dataset]}.")
    folder = folder / "images" if (folder / "images").is_dir() else folder
    (images, labels), *_ = read_folder(f"folder:{folder}", image_size, skip_unreadable=skip_unreadable)
    return DomainImages(images, labels, tuple(class_names(folder)))


def _read_packed(path: Path, domain: str, image_size: int) -> DomainImages:
    arrays = load_npz(path, "bytes", "offsets", "domain", "label", "domains", "classes")
    chosen = np.flatnonzero(arrays["domain"] == arrays["domains"].tolist().index(domain))
    source = EncodedImages.from_bytes(str(path), arrays["bytes"], arrays["offsets"])
    images = [to_pixels(central_square(source.open(index), image_size)) for index in chosen.tolist()]
    labels = torch.from_numpy(arrays["label"][chosen].astype(np.int64))
    return DomainImages(torch.from_numpy(np.stack(images)), labels, tuple(arrays["classes"].tolist()))
