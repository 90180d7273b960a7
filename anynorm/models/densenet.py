"""DenseNet-121 (Huang et al. 2017): every layer sees the outputs of all before it in its block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anynorm.models.shape import Shape, scaled


class Dense(nn.Module):
    """Norm, ReLU and convolution, 1 × 1 and then 3 × 3, whose output joins the input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Join."""
        return torch.cat([x, self.conv2(self.bn2(self.conv1(self.bn1(x).relu())).relu())], dim=1)


def densenet121(shape: Shape, width: float = 1.0) -> nn.Module:
    """Make a DenseNet-121, whose growth of 32 channels a layer can be scaled."""
    growth = scaled(32, width)
    channels = 2 * growth
    if shape.is_small:
        layers: list[nn.Module] = [nn.Conv2d(shape.channels, channels, 3, 1, 1, bias=False)]
    else:
        first = nn.Conv2d(shape.channels, channels, 7, 2, 3, bias=False)
        layers = [first, nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for index, count in enumerate((6, 12, 24, 16)):
        if index:
            half = nn.Conv2d(channels, channels // 2, 1, bias=False)
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), half, nn.AvgPool2d(2, ceil_mode=True)]
            channels //= 2
        for _ in range(count):
            layers.append(Dense(channels, growth))
            channels += growth
    end = [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, shape.classes)]
    return nn.Sequential(*layers, *end)
