"""The weights of the VGG encoders of style transfer.

vgg19-normalised   VGG-19 up to relu4_1, scaled so that the mean of every channel is 1: the encoder of AdaIN (Huang & Belongie
                   2017). A file in the data directory, see `NORMALISED_FILES`; its first layer replaces (x − mean)/std
vgg19, vgg16       torchvision's, trained on ImageNet; downloaded into the data directory at first use
PATH               a file of either kind: a state_dict (.pth, .pt, .safetensors) or .npz
random             VGG-19 of an eighth of the width with fixed random weights, for tests
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.io.checkpoints import read_state_dict
from anynorm.lab.data.download import data_dir, fetch_weights
from anynorm.lab.tasks.style.networks.vgg import VGG, random_weights, read_weights

NORMALISED = "vgg19-normalised"
NORMALISED_FILES = ("adain_vgg19/vgg19_normalised_relu4_1_f16.npz", "vgg_normalised.pth")
"""Paths of AdaIN's encoder under the data directory."""
URLS = {
    "vgg19": "https://download.pytorch.org/models/vgg19-dcbb9e9d.pth",
    "vgg16": "https://download.pytorch.org/models/vgg16-397923af.pth",
}


def load_vgg(encoder: str, last: str = "relu4_1") -> VGG:
    """Return an encoder with its weights.

    Args:
        encoder: vgg19-normalised, vgg19, vgg16, random, or the path of a file.
        last: the last layer.

    Raises:
        DataError: if the weights are not found, cannot be downloaded or read, or end before the last layer.
    """
    weights = random_weights() if encoder == "random" else read_weights(_read(_find(encoder)), encoder)
    return VGG(weights, last)


def _find(encoder: str) -> Path:
    """Return the path of the weights; download those of torchvision."""
    if encoder in URLS:
        return fetch_weights(URLS[encoder])
    if encoder == NORMALISED:
        paths = [data_dir() / name for name in NORMALISED_FILES]
        if path := next((path for path in paths if path.exists()), None):
            return path
        raise DataError(
            f"the encoder {NORMALISED} needs {' or '.join(NORMALISED_FILES)} under {data_dir()}. Put vgg_normalised.pth of the "
            "release of pytorch-AdaIN there, set ANYNORM_DATA to the directory that has it, or use encoder=vgg19 (downloaded)."
        )
    if Path(encoder).is_file():
        return Path(encoder)
    raise DataError(f"encoder must be {NORMALISED}, {', '.join(URLS)}, random, or an existing file; got {encoder!r}.")


def _read(path: Path) -> Mapping[str, Tensor]:
    if path.suffix != ".npz":
        return read_state_dict(path)
    try:
        with np.load(path) as arrays:
            return {name: torch.from_numpy(arrays[name]).float() for name in arrays.files}
    except Exception as error:  # numpy and zipfile raise many types for a file of another format
        raise DataError(f"cannot read {path}: {type(error).__name__}: {error}.") from None
