"""VGG networks, whose features measure the content and the style of an image.

    image in [0, 1] ─▶ 1 × 1 convolution: (x − mean)/std ─▶ relu1_1 ─▶ relu1_2 ─▶ max pooling ─▶ relu2_1 ─▶ … ─▶ relu4_k

Every 3 × 3 convolution pads by reflection, as in AdaIN's release: zeros would become visible borders. Weights are one of

    vgg19-normalised   VGG-19 up to relu4_1, scaled so that the mean of every channel is 1; the encoder of AdaIN (Huang & Belongie
                       2017). A file in the data directory, see `NORMALISED_FILES`; its first layer replaces (x − mean)/std
    vgg19, vgg16       torchvision's, trained on ImageNet; downloaded into the data directory at first use
    PATH               a file of either kind: a state_dict (.pth, .pt, .safetensors) or .npz
    random             VGG-19 of an eighth of the width with fixed random weights, for tests
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from anynorm.data.download import data_dir, fetch_weights
from anynorm.errors import DataError, ShapeError
from anynorm.io.checkpoints import read_state_dict
from anynorm.io.inputs import IMAGENET_MEAN, IMAGENET_STD

NORMALISED = "vgg19-normalised"
NORMALISED_FILES = ("adain_vgg19/vgg19_normalised_relu4_1_f16.npz", "vgg_normalised.pth")
"""Where AdaIN's encoder is searched under the data directory."""
URLS = {
    "vgg19": "https://download.pytorch.org/models/vgg19-dcbb9e9d.pth",
    "vgg16": "https://download.pytorch.org/models/vgg16-397923af.pth",
}
RANDOM_SIZES = [(8, 2), (16, 2), (32, 4), (64, 4)]
"""Channels and number of convolutions per block of the random encoder."""
NUM_BLOCKS = 4
Weights = list[tuple[Tensor, Tensor]]
"""Weight and bias of the 1 × 1 convolution and of every 3 × 3 convolution."""


class VGG(nn.Module):
    """A VGG network up to a layer, with fixed weights.

    Args:
        weights: weight and bias of the 1 × 1 convolution, then of each 3 × 3 convolution.
        last: the last layer, such as relu4_1.

    Attributes:
        convolutions: the 3 × 3 convolutions by the name of the layer that follows them.
        num_features: the number of channels of the last layer.
        min_size: the smallest height and width of an image: a layer must have at least 2 × 2 positions.

    Raises:
        DataError: if the weights do not reach the last layer.
    """

    def __init__(self, weights: Weights, last: str = "relu4_1") -> None:
        super().__init__()
        names = layer_names([weight.shape[0] for weight, _ in weights[1:]])
        if last not in names:
            raise DataError(f"the layer must be one of those in the weights of the encoder, {' '.join(names)}; got {last!r}.")
        used = names[: names.index(last) + 1]
        self.standardize = _convolution(*weights[0])
        self.convolutions = nn.ModuleDict({name: _convolution(*weights[k]) for k, name in enumerate(used, 1)})
        self.num_features = int(weights[len(used)][0].shape[0])
        self.min_size = 2 ** sum(starts_block(name) for name in used) + 1
        self.requires_grad_(False)

    def forward(self, images: Tensor, layers: Iterable[str] = ()) -> dict[str, Tensor]:
        """Return the features of layers by name.

        Args:
            images: (n, 3, h, w) in [0, 1], of any size from `min_size`.
            layers: names of layers; the last one if empty.

        Raises:
            ShapeError: if the images are too small.
        """
        if min(images.shape[2:]) < self.min_size:
            size, (height, width) = self.min_size, images.shape[2:]
            raise ShapeError(f"images must have at least {size} × {size} pixels for this encoder; got {height} × {width}.")
        names = list(self.convolutions)
        wanted = set(layers) or {names[-1]}
        features: dict[str, Tensor] = {}
        x = self.standardize(images)
        for name in names[: 1 + max(map(names.index, wanted))]:
            if starts_block(name):
                x = nn.functional.max_pool2d(x, 2, ceil_mode=True)
            x = self.convolutions[name](x).relu()
            if name in wanted:
                features[name] = x
        return features


def _convolution(weight: Tensor, bias: Tensor) -> nn.Conv2d:
    outputs, inputs, size = weight.shape[:3]
    layer = nn.Conv2d(inputs, outputs, size, padding=size // 2, padding_mode="reflect", device="meta")
    layer.load_state_dict({"weight": weight, "bias": bias}, assign=True)
    return layer


def layer_names(channels: Iterable[int]) -> list[str]:
    """Return the names of the layers of the first four blocks, from the number of channels of each convolution.

    A block has one number of channels. The fourth has as many convolutions as the third, because the fifth is as wide.

    >>> layer_names([64, 64, 128, 128, 256, 256, 256, 512])[-2:]
    ['relu3_3', 'relu4_1']
    """
    names: list[str] = []
    block, count, before, previous = 0, 0, 0, 0
    for width in channels:
        if width != previous:
            block, count, before, previous = block + 1, 0, count, width
        count += 1
        if block > NUM_BLOCKS or (block == NUM_BLOCKS and count > before):
            break
        names.append(f"relu{block}_{count}")
    return names


def starts_block(name: str) -> bool:
    """Whether max pooling precedes a layer."""
    return name.endswith("_1") and name != "relu1_1"


def load_vgg(encoder: str, last: str = "relu4_1") -> VGG:
    """Return an encoder with its weights.

    Args:
        encoder: vgg19-normalised, vgg19, vgg16, random, or the path of a file.
        last: the last layer.

    Raises:
        DataError: if the weights are not found, cannot be downloaded or read, or do not reach the last layer.
    """
    weights = _random_weights() if encoder == "random" else _convolutions(_read(_find(encoder)), encoder)
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


def _convolutions(state: Mapping[str, Tensor], encoder: str) -> Weights:
    """Return the convolutions of a state_dict in order; (x − mean)/std as the first one if the file does not have it."""
    numbers = {name: int(match[1]) for name in state if (match := re.search(r"(\d+)\.weight$", name)) and state[name].dim() == 4}
    names = sorted(numbers, key=lambda name: numbers[name])
    weights = [(state[name].float(), state[f"{name.removesuffix('weight')}bias"].float()) for name in names]
    if weights and weights[0][0].shape == (3, 3, 1, 1):
        first = weights.pop(0)
    else:
        mean, std = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
        first = (torch.diag(1 / std)[..., None, None], -mean / std)
    sizes = [3, *(weight.shape[0] for weight, _ in weights)]
    if not weights or any(weight.shape[1:] != (size, 3, 3) for (weight, _), size in zip(weights, sizes, strict=False)):
        raise DataError(
            f"encoder must be the file of a VGG network: 3 × 3 convolutions in order, from 3 channels; got {encoder!r}."
        )
    return [first, *weights]


def _random_weights() -> Weights:
    """Return fixed weights with the variance of He et al. (2015)."""
    generator = torch.Generator().manual_seed(0)
    mean, std = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
    weights, inputs = [(torch.diag(1 / std)[..., None, None], -mean / std)], 3
    for width, count in RANDOM_SIZES:
        for _ in range(count):
            noise = torch.randn(width, inputs, 3, 3, generator=generator)
            weights.append((noise * (2 / (9 * inputs)) ** 0.5, torch.zeros(width)))
            inputs = width
    return weights
