"""DenseNet-121 (Huang et al. 2017): the input of a layer is the concatenated outputs of all earlier layers of its block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anynorm.lab.data.shape import DataShape
from anynorm.lab.models.channels import scale_channels


class DenseLayer(nn.Module):
    """Norm, ReLU, 1 × 1 convolution, norm, ReLU, 3 × 3 convolution; the output is concatenated to the input."""

    def __init__(self, in_channels: int, growth: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(in_channels), nn.Conv2d(in_channels, 4 * growth, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the concatenation of the input and the new channels."""
        return torch.cat([x, self.conv2(self.bn2(self.conv1(self.bn1(x).relu())).relu())], dim=1)


def densenet121(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a DenseNet-121; `width` multiplies its growth rate of 32 channels per layer."""
    growth = scale_channels(32, width)
    channels = 2 * growth
    if shape.is_small:
        layers: list[nn.Module] = [nn.Conv2d(shape.channels, channels, 3, 1, 1, bias=False)]
    else:
        stem = nn.Conv2d(shape.channels, channels, 7, 2, 3, bias=False)
        layers = [stem, nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for index, num_layers in enumerate((6, 12, 24, 16)):
        if index:
            transition = nn.Conv2d(channels, channels // 2, 1, bias=False)
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), transition, nn.AvgPool2d(2, ceil_mode=True)]
            channels //= 2
        for _ in range(num_layers):
            layers.append(DenseLayer(channels, growth))
            channels += growth
    head = [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, shape.num_classes)]
    return nn.Sequential(*layers, *head)
