"""MobileNetV2 (Sandler et al. 2018): inverted residual blocks of depthwise convolutions."""

from __future__ import annotations

from torch import Tensor, nn

from anynorm.lab.data.shape import DataShape
from anynorm.lab.models.channels import scale_channels


def conv_norm_act(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    *,
    stride: int = 1,
    groups: int = 1,
    activation: type[nn.Module] | None = nn.ReLU,
) -> nn.Sequential:
    """Build a convolution (same padding, no bias), a BatchNorm and an activation.

    Args:
        in_channels, out_channels, kernel_size, stride, groups: as in nn.Conv2d.
        activation: class of the activation; None for no activation.
    """
    layers: list[nn.Module] = [
        nn.Conv2d(in_channels, out_channels, kernel_size, stride, kernel_size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out_channels),
    ]
    return nn.Sequential(*layers, *([activation()] if activation else []))


class InvertedResidual(nn.Module):
    """1 × 1 convolution to more channels, depthwise 3 × 3, 1 × 1 to fewer; with a shortcut if input and output have one shape."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        inner = in_channels * expansion
        expand = [conv_norm_act(in_channels, inner, 1, activation=nn.ReLU6)] if expansion > 1 else []
        depthwise = conv_norm_act(inner, inner, 3, stride=stride, groups=inner, activation=nn.ReLU6)
        self.body = nn.Sequential(*expand, depthwise, conv_norm_act(inner, out_channels, 1, activation=None))
        self.has_shortcut = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Return body(x), plus x if there is a shortcut."""
        y: Tensor = self.body(x)
        return x + y if self.has_shortcut else y


def mobilenetv2(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a MobileNetV2; for small images, three of its five strides of 2 are 1."""
    #       expansion, channels, blocks, stride, stride for small images
    stages = [
        (1, 16, 1, 1, 1),
        (6, 24, 2, 2, 1),
        (6, 32, 3, 2, 2),
        (6, 64, 4, 2, 2),
        (6, 96, 3, 1, 1),
        (6, 160, 3, 2, 1),
        (6, 320, 1, 1, 1),
    ]
    in_channels = scale_channels(32, width)
    stem = conv_norm_act(shape.channels, in_channels, 3, stride=1 if shape.is_small else 2, activation=nn.ReLU6)
    layers: list[nn.Module] = [stem]
    for expansion, channels, num_blocks, stride, small_stride in stages:
        out_channels = scale_channels(channels, width)
        first_stride = small_stride if shape.is_small else stride
        for index in range(num_blocks):
            block_stride = first_stride if index == 0 else 1
            layers.append(InvertedResidual(in_channels, out_channels, stride=block_stride, expansion=expansion))
            in_channels = out_channels
    last = scale_channels(1280, max(1.0, width))
    head = [
        conv_norm_act(in_channels, last, 1, activation=nn.ReLU6),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(last, shape.num_classes),
    ]
    return nn.Sequential(*layers, *head)
