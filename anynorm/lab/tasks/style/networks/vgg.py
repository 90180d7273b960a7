"""VGG networks, whose features represent the content and the style of an image.

    image in [0, 1] ─▶ 1 × 1 convolution: (x − mean)/std ─▶ relu1_1 ─▶ relu1_2 ─▶ max pooling ─▶ relu2_1 ─▶ … ─▶ relu4_k

Every 3 × 3 convolution uses reflection padding, as in AdaIN's release; zero padding causes visible borders.
`anynorm.lab.tasks.style.encoders` loads the weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from anynorm.errors import DataError, ShapeError
from anynorm.io.inputs import IMAGENET_MEAN, IMAGENET_STD

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
        num_features: number of channels of the last layer.
        min_size: minimum height and width of an image, for which every layer has at least 2 × 2 positions.

    Raises:
        DataError: if the weights do not include the last layer.
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
            images: images (n, 3, h, w) in [0, 1], of height and width at least `min_size`.
            layers: names of layers; if empty, the last layer.

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
    """Return the names of the layers of the first four blocks, given the number of channels of each convolution.

    All convolutions of a block have the same number of channels. The fourth and fifth block have equal numbers of channels; the
    fourth has as many convolutions as the third.

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
    """Whether a layer follows max pooling, as the first layer of each block except the first block does."""
    return name.endswith("_1") and name != "relu1_1"


def read_weights(state: Mapping[str, Tensor], source: str) -> Weights:
    """Return the weights of the convolutions of a state_dict; the 1 × 1 convolution (x − mean)/std is added if it has none.

    Args:
        state: state_dict of a VGG network of torchvision, or of the encoder of AdaIN.
        source: name of the file, for error messages.

    Raises:
        DataError: if the state_dict is not that of a VGG network.
    """
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
            f"encoder must be the file of a VGG network: 3 × 3 convolutions in order, from 3 channels; got {source!r}."
        )
    return [first, *weights]


def random_weights() -> Weights:
    """Return random weights with a fixed seed and the variance of He et al. (2015)."""
    generator = torch.Generator().manual_seed(0)
    mean, std = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
    weights, inputs = [(torch.diag(1 / std)[..., None, None], -mean / std)], 3
    for width, count in RANDOM_SIZES:
        for _ in range(count):
            noise = torch.randn(width, inputs, 3, 3, generator=generator)
            weights.append((noise * (2 / (9 * inputs)) ** 0.5, torch.zeros(width)))
            inputs = width
    return weights
