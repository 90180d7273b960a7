"""ResNet-12, the usual network of few-shot learning (Oreshkin et al. 2018), with a cosine classifier.

It has four blocks with 64, 128, 256 and 512 channels, and then the mean over all positions. A block has three 3 × 3 convolutions,
each with a norm, a shortcut of a 1 × 1 convolution and a norm, and 2 × 2 max pooling after the sum. The last block has no
activation after the sum: after a ReLU, the cosine of any two features would be positive (Gidaris & Komodakis 2018).
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from anynorm.lab.data.shape import DataShape
from anynorm.lab.models.channels import scale_channels
from anynorm.lab.models.cosine import CosineLinear
from anynorm.lab.models.resnet import shortcut

SLOPE = 0.1
"""Slope of the LeakyReLU for negative inputs."""


class Block(nn.Module):
    """Three convolutions with a shortcut, and pooling.

    Args:
        in_channels: number of input channels.
        width: number of output channels.
        activation: the activation after the sum.
        pool: size of the max pooling: 2, or 1 for maps that are too small to be halved.
    """

    def __init__(self, in_channels: int, width: int, *, activation: nn.Module, pool: int = 2) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before in (in_channels, width, width):
            layers += [nn.Conv2d(before, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.LeakyReLU(SLOPE)]
        self.body = nn.Sequential(*layers[:-1])
        self.downsample = shortcut(in_channels, width, 1)
        self.activation, self.pool = activation, nn.MaxPool2d(pool)

    def forward(self, x: Tensor) -> Tensor:
        """Return pool(activation(body(x) + shortcut(x)))."""
        y: Tensor = self.pool(self.activation(self.body(x) + self.downsample(x)))
        return y


def resnet12(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a ResNet-12 with a cosine classifier; maps of one pixel are not pooled."""
    base, side = scale_channels(64, width), min(shape.height, shape.width)
    channels = [shape.channels, base, 2 * base, 4 * base, 8 * base]
    activations = [nn.LeakyReLU(SLOPE), nn.LeakyReLU(SLOPE), nn.LeakyReLU(SLOPE), nn.Identity()]
    blocks = []
    for (before, after), activation in zip(pairwise(channels), activations, strict=True):
        blocks.append(Block(before, after, activation=activation, pool=2 if side > 1 else 1))
        side = max(1, side // 2)
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), CosineLinear(8 * base, shape.num_classes))
