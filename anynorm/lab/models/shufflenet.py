"""ShuffleNetV2 (Ma et al. 2018): blocks of two branches whose channels are shuffled."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anynorm.lab.data.shape import DataShape
from anynorm.lab.models.channels import scale_channels
from anynorm.lab.models.mobilenet import conv_norm_act

CHANNELS = {0.5: (48, 96, 192, 1024), 1.0: (116, 232, 464, 1024), 1.5: (176, 352, 704, 1024), 2.0: (244, 488, 976, 2048)}
"""Channels of the three stages and of the last convolution, by width (Table 5 of the paper)."""


class ShuffleUnit(nn.Module):
    """Two branches, each with half of the output channels, which are interleaved (channel shuffle).

    At stride 1 the channels are split and the left branch is the identity; at stride 2 both branches receive all channels.
    """

    def __init__(self, in_channels: int, out_channels: int, *, stride: int) -> None:
        super().__init__()
        half = out_channels // 2
        self.splits_channels = stride == 1
        self.left = nn.Sequential()
        if not self.splits_channels:
            self.left = nn.Sequential(
                conv_norm_act(in_channels, in_channels, 3, stride=stride, groups=in_channels, activation=None),
                conv_norm_act(in_channels, half, 1),
            )
        self.right = nn.Sequential(
            conv_norm_act(half if self.splits_channels else in_channels, half, 1),
            conv_norm_act(half, half, 3, stride=stride, groups=half, activation=None),
            conv_norm_act(half, half, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the interleaved channels of both branches."""
        a, b = x.chunk(2, dim=1) if self.splits_channels else (x, x)
        both = torch.stack([self.left(a), self.right(b)], dim=2)
        return both.flatten(1, 2)


def shufflenetv2(shape: DataShape, width: float = 1.5) -> nn.Module:
    """Build a ShuffleNetV2, by default ×1.5 as in hn Table 3; for a width not in `CHANNELS`, the channels of ×1.5 are scaled."""
    scaled = (*(scale_channels(size, width / 1.5, 16) for size in CHANNELS[1.5][:3]), 1024)
    *stages, last = CHANNELS.get(width, scaled)
    stem = conv_norm_act(shape.channels, 24, 3, stride=1 if shape.is_small else 2)
    layers: list[nn.Module] = [stem, *([] if shape.is_small else [nn.MaxPool2d(3, 2, 1)])]
    in_channels = 24
    for out_channels, num_units in zip(stages, (4, 8, 4), strict=True):
        layers.append(ShuffleUnit(in_channels, out_channels, stride=2))
        layers += [ShuffleUnit(out_channels, out_channels, stride=1) for _ in range(num_units - 1)]
        in_channels = out_channels
    head = [conv_norm_act(in_channels, last, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, shape.num_classes)]
    return nn.Sequential(*layers, *head)
