"""Networks of bottleneck blocks for images of 16 × 16 pixels: three stages, so that the last maps have 4 × 4 pixels.

The networks of the paper have four stages. With images of 16 pixels their last maps would have 2 × 2 pixels, and IN would compute
its statistics from four values instead of 49. The first stage has 16 channels: GN with 16 groups is IN there, as the paper's GN
with 64 groups is IN in the first stage of ResNet-50.
"""

from __future__ import annotations

from torch import nn

from anynorm.lab.data.shape import DataShape
from anynorm.lab.models.channels import scale_channels
from anynorm.lab.models.resnet import Bottleneck, resnet


def resnet29(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a network of 9 bottlenecks, in the place of ResNet-50."""
    return resnet(shape, Bottleneck, (3, 3, 3), width=scale_channels(16, width))


def resnet56(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a network of 18 bottlenecks, in the place of ResNet-101."""
    return resnet(shape, Bottleneck, (6, 6, 6), width=scale_channels(16, width))


def resnext29(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a network of 9 bottlenecks whose 3 × 3 convolutions have 8 groups of 4 channels, in the place of ResNeXt-50."""
    return resnet(
        shape, Bottleneck, (3, 3, 3), width=scale_channels(16, width), groups=8, width_per_group=max(1, round(4 * width))
    )
