"""Residual networks: ResNet (He et al. 2016), ResNeXt (Xie et al. 2017), Wide ResNet (Zagoruyko & Komodakis 2016).

For small images (up to 64 pixels) the stem is one 3 × 3 convolution; for larger images it is that of the papers (a 7 × 7
convolution and pooling).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from anynorm.lab.data.shape import DataShape
from anynorm.lab.models.channels import scale_channels


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions with a shortcut; `groups` and `inner` (see `Bottleneck`) are ignored."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, *, stride: int = 1, groups: int = 1, inner: int = 0) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(in_channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.downsample = shortcut(in_channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(body(x) + shortcut(x))."""
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        summed: Tensor = y + self.downsample(x)
        return summed.relu()


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3, 1 × 1 convolutions with a shortcut.

    Args:
        in_channels: Number of input channels.
        width: A quarter of the number of output channels.
        stride: Stride of the 3 × 3 convolution.
        groups: Number of groups of the 3 × 3 convolution.
        inner: Number of channels of the 3 × 3 convolution; 0 for `width`.
    """

    expansion = 4

    def __init__(self, in_channels: int, width: int, *, stride: int = 1, groups: int = 1, inner: int = 0) -> None:
        super().__init__()
        inner = inner or width
        self.conv1, self.bn1 = nn.Conv2d(in_channels, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.downsample = shortcut(in_channels, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(body(x) + shortcut(x))."""
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())).relu()
        summed: Tensor = self.bn3(self.conv3(y)) + self.downsample(x)
        return summed.relu()


def shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Build a shortcut: the identity, or a 1 × 1 convolution and a norm if the shape changes."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels))


def stem(shape: DataShape, width: int) -> nn.Sequential:
    """Build the first layers: a 3 × 3 convolution for small images, else a 7 × 7 convolution and pooling, each with stride 2."""
    if shape.is_small:
        return nn.Sequential(nn.Conv2d(shape.channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    conv = nn.Conv2d(shape.channels, width, 7, 2, 3, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))


def resnet(
    shape: DataShape,
    block: type[BasicBlock | Bottleneck],
    num_blocks: Sequence[int],
    *,
    width: int,
    groups: int = 1,
    width_per_group: int = 0,
) -> nn.Sequential:
    """Build a residual network; each stage after the first halves the resolution and doubles the width.

    Args:
        shape: Shape of the images, and the number of classes.
        block: Class of the blocks.
        num_blocks: Number of blocks of each stage.
        width: Width of the first stage: the argument `width` of its blocks.
        groups: Number of groups of the inner convolutions (ResNeXt).
        width_per_group: Number of channels per group of the inner convolutions in the first stage (ResNeXt); 0 for `width`
            channels in total.
    """
    stages: list[nn.Module] = []
    in_channels = width
    for stage, count in enumerate(num_blocks):
        stage_width, inner = width * 2**stage, groups * width_per_group * 2**stage
        layers = []
        for index in range(count):
            stride = 2 if stage and not index else 1
            layers.append(block(in_channels, stage_width, stride=stride, groups=groups, inner=inner))
            in_channels = stage_width * block.expansion
        stages.append(nn.Sequential(*layers))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(in_channels, shape.num_classes))
    return nn.Sequential(stem(shape, width), *stages, head)


def small(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a ResNet-8 for small images: three basic blocks of 16, 32 and 64 channels, nine norms."""
    return resnet(shape, BasicBlock, (1, 1, 1), width=scale_channels(16, width))


def resnet10(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a ResNet-10: one basic block per stage, 16 to 128 channels (a quarter of the width of ResNet-18)."""
    return resnet(shape, BasicBlock, (1, 1, 1, 1), width=scale_channels(16, width))


def resnet18(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a ResNet-18."""
    return resnet(shape, BasicBlock, (2, 2, 2, 2), width=scale_channels(64, width))


def resnet20(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a ResNet-20 for small images: three stages of three basic blocks, 16 to 64 channels."""
    return resnet(shape, BasicBlock, (3, 3, 3), width=scale_channels(16, width))


def resnet26(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a ResNet-26: two bottlenecks per stage, 64 to 512 channels (a quarter of the width of ResNet-50)."""
    return resnet(shape, Bottleneck, (2, 2, 2, 2), width=scale_channels(16, width))


def resnet50(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a ResNet-50."""
    return resnet(shape, Bottleneck, (3, 4, 6, 3), width=scale_channels(64, width))


def resnet101(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a ResNet-101."""
    return resnet(shape, Bottleneck, (3, 4, 23, 3), width=scale_channels(64, width))


def resnext50(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a ResNeXt-50 (32 × 4d)."""
    return resnet(
        shape, Bottleneck, (3, 4, 6, 3), width=scale_channels(64, width), groups=32, width_per_group=max(1, round(4 * width))
    )


def resnext101(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a ResNeXt-101 (32 × 8d)."""
    return resnet(
        shape, Bottleneck, (3, 4, 23, 3), width=scale_channels(64, width), groups=32, width_per_group=max(1, round(8 * width))
    )


class WideBlock(nn.Module):
    """Pre-activation block: twice norm, ReLU and convolution; the shortcut starts after the first ReLU if the shape changes."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(in_channels), nn.Conv2d(in_channels, width, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, 1, 1, bias=False)
        changes_shape = stride > 1 or in_channels != width
        self.downsample = nn.Conv2d(in_channels, width, 1, stride, bias=False) if changes_shape else None

    def forward(self, x: Tensor) -> Tensor:
        """Return body(x) + shortcut(x)."""
        y = self.bn1(x).relu()
        residual = x if self.downsample is None else self.downsample(y)
        summed: Tensor = self.conv2(self.bn2(self.conv1(y)).relu()) + residual
        return summed


def preactivation_resnet(shape: DataShape, in_channels: int, widths: Sequence[int], blocks_per_stage: int) -> nn.Sequential:
    """Build a network of pre-activation blocks (He et al. 2016b); each stage after the first halves the resolution.

    As in the paper, a norm and a ReLU follow the last block, before the pooling.

    Args:
        shape: Shape of the images, and the number of classes.
        in_channels: Number of channels of the first convolution.
        widths: Width of each stage, in channels.
        blocks_per_stage: Number of blocks of each stage.
    """
    blocks: list[nn.Module] = []
    before = in_channels
    for stage, width in enumerate(widths):
        for index in range(blocks_per_stage):
            blocks.append(WideBlock(before, width, 2 if stage and not index else 1))
            before = width
    head = [nn.BatchNorm2d(before), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, shape.num_classes)]
    return nn.Sequential(nn.Conv2d(shape.channels, in_channels, 3, 1, 1, bias=False), *blocks, *head)


def wrn_10_2(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a Wide ResNet-10-2: three blocks, twice as wide as in a CIFAR ResNet."""
    base = scale_channels(16, width)
    return preactivation_resnet(shape, base, [2 * base, 4 * base, 8 * base], blocks_per_stage=1)


def preact_resnet18(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a PreAct-ResNet-18: two pre-activation blocks per stage, 64 to 512 channels, then norm, ReLU and pooling.

    The network of the public code of sabn has no norm and no ReLU before the pooling.
    """
    base = scale_channels(64, width)
    return preactivation_resnet(shape, base, [base, 2 * base, 4 * base, 8 * base], blocks_per_stage=2)


def preact_resnet8(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a PreAct-ResNet-8 for small images: three pre-activation blocks of 16, 32 and 64 channels, seven norms."""
    base = scale_channels(16, width)
    return preactivation_resnet(shape, base, [base, 2 * base, 4 * base], blocks_per_stage=1)
