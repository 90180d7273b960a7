"""Residual networks: ResNet-18, -50 (He et al. 2016), ResNeXt-50 (Xie et al. 2017), WRN-10-2 (Zagoruyko & Komodakis 2016).

Small images (up to 64 pixels) get a stem of one 3 × 3 convolution, others that of the papers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from anynorm.models.shape import Shape, scaled


class Basic(nn.Module):
    """Two 3 × 3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, *, stride: int = 1, groups: int = 1, inner: int = 0) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.downsample = shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Add the shortcut."""
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        total: Tensor = y + self.downsample(x)
        return total.relu()


class Bottleneck(nn.Module):
    """A 3 × 3 convolution of few channels, or in groups, between two of 1 × 1, beside a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, *, stride: int = 1, groups: int = 1, inner: int = 0) -> None:
        super().__init__()
        inner = inner or width
        self.conv1, self.bn1 = nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.downsample = shortcut(inputs, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Add the shortcut."""
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())).relu()
        total: Tensor = self.bn3(self.conv3(y)) + self.downsample(x)
        return total.relu()


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Make a shortcut: nothing, or a 1 × 1 convolution and a norm where the shape changes."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def stem(shape: Shape, width: int) -> nn.Sequential:
    """Make the first layers: 7 × 7 and pooling, each halving the image; or 3 × 3 alone where it is small."""
    if shape.is_small:
        return nn.Sequential(nn.Conv2d(shape.channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    first = nn.Conv2d(shape.channels, width, 7, 2, 3, bias=False)
    return nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))


def residual(
    shape: Shape, block: type[Basic | Bottleneck], blocks: Sequence[int], *, width: int, groups: int = 1, per_group: int = 0
) -> nn.Sequential:
    """Make a network of stages; each after the first halves the image and doubles the width.

    Args:
        per_group: channels of each group of the inner convolution in the first stage (ResNeXt).
    """
    stages: list[nn.Module] = []
    inputs = width
    for k, count in enumerate(blocks):
        outputs, inner = width * 2**k, groups * per_group * 2**k
        layers = []
        for index in range(count):
            stride = 2 if k and not index else 1
            layers.append(block(inputs, outputs, stride=stride, groups=groups, inner=inner))
            inputs = outputs * block.expansion
        stages.append(nn.Sequential(*layers))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, shape.classes))
    return nn.Sequential(stem(shape, width), *stages, head)


def small(shape: Shape, width: float = 1.0) -> nn.Module:
    """Make a residual network of nine norms, for small images: three blocks of 16, 32 and 64 channels."""
    return residual(shape, Basic, (1, 1, 1), width=scaled(16, width))


def resnet10(shape: Shape, width: float = 1.0) -> nn.Module:
    """Make a residual network of a block a stage, a quarter as wide as a ResNet-18: 16 to 128 channels."""
    return residual(shape, Basic, (1, 1, 1, 1), width=scaled(16, width))


def resnet18(shape: Shape, width: float = 1.0) -> nn.Module:
    """Make a ResNet-18."""
    return residual(shape, Basic, (2, 2, 2, 2), width=scaled(64, width))


def resnet26(shape: Shape, width: float = 1.0) -> nn.Module:
    """Make a residual network of two bottlenecks a stage, a quarter as wide as a ResNet-50: 64 to 512 channels."""
    return residual(shape, Bottleneck, (2, 2, 2, 2), width=scaled(16, width))


def resnet50(shape: Shape, width: float = 1.0) -> nn.Module:
    """Make a ResNet-50."""
    return residual(shape, Bottleneck, (3, 4, 6, 3), width=scaled(64, width))


def resnext50(shape: Shape, width: float = 1.0) -> nn.Module:
    """Make a ResNeXt-50 (32 × 4d)."""
    return residual(shape, Bottleneck, (3, 4, 6, 3), width=scaled(64, width), groups=32, per_group=max(1, round(4 * width)))


class WideBlock(nn.Module):
    """Norm, ReLU and convolution, twice, beside a shortcut that branches off after the first ReLU."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, 1, 1, bias=False)
        changes = stride > 1 or inputs != width
        self.downsample = nn.Conv2d(inputs, width, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """Add the shortcut."""
        y = self.bn1(x).relu()
        aside = x if self.downsample is None else self.downsample(y)
        total: Tensor = self.conv2(self.bn2(self.conv1(y)).relu()) + aside
        return total


def wrn_10_2(shape: Shape, width: float = 1.0) -> nn.Module:
    """Make a Wide ResNet-10-2: three blocks, twice as wide as a CIFAR ResNet's."""
    base = scaled(16, width)
    sizes = [base, 2 * base, 4 * base, 8 * base]
    blocks = [WideBlock(before, after, 1 + (k > 0)) for k, (before, after) in enumerate(pairwise(sizes))]
    end = [nn.BatchNorm2d(sizes[-1]), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[-1], shape.classes)]
    return nn.Sequential(nn.Conv2d(shape.channels, base, 3, 1, 1, bias=False), *blocks, *end)
