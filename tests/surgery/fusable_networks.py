"""Blocks of convolutional networks as they are written elsewhere, for tests of `fuse`."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def conv(inputs, outputs, size=3, stride=1):
    """A convolution without bias that keeps the size of the image, divided by the stride."""
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


class Bottleneck(nn.Module):
    """The bottleneck of torchvision, with one in-place ReLU for three places, and the shortcut after the last norm."""

    def __init__(self, inputs, width, stride=1, norm=nn.BatchNorm2d):
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, width, 1), norm(width)
        self.conv2, self.bn2 = conv(width, width, 3, stride), norm(width)
        self.conv3, self.bn3 = conv(width, 2 * width, 1), norm(2 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1 or inputs != 2 * width:
            self.downsample = nn.Sequential(conv(inputs, 2 * width, 1, stride), norm(2 * width))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class InvertedResidual(nn.Module):
    """The block of MobileNetV2 with ReLU6, whose last norm has no activation."""

    def __init__(self, channels, norm=nn.BatchNorm2d, p=0.0):
        super().__init__()
        self.expand = nn.Sequential(conv(channels, 2 * channels, 1), norm(2 * channels), nn.ReLU6(inplace=True))
        self.project, self.norm, self.drop = conv(2 * channels, channels, 1), norm(channels), nn.Dropout(p)

    def forward(self, x):
        return x + self.drop(self.norm(self.project(self.expand(x))))


class PreActivation(nn.Module):
    """A block of norm, activation and convolution, in this order, with functions instead of modules."""

    def __init__(self, channels, norm=nn.BatchNorm2d):
        super().__init__()
        self.norm1, self.conv1, self.norm2, self.conv2 = (
            norm(channels),
            conv(channels, channels),
            norm(channels),
            conv(channels, channels),
        )

    def forward(self, x):
        y = self.conv1(functional.leaky_relu(self.norm1(x), 0.2, inplace=True))
        return torch.add(x, self.conv2(functional.gelu(self.norm2(y), approximate="tanh")))


class TwoNorms(nn.Module):
    """A block that adds the outputs of two norms."""

    def __init__(self, channels, norm=nn.BatchNorm2d):
        super().__init__()
        self.conv1, self.norm1, self.conv2, self.norm2 = (
            conv(channels, channels),
            norm(channels),
            conv(channels, channels),
            norm(channels),
        )
        self.act = nn.SiLU()

    def forward(self, x):
        return self.act(self.norm1(self.conv1(x)).add_(self.norm2(self.conv2(x))))


def fusable_network(norm=nn.BatchNorm2d) -> Any:
    """A network of all these blocks: 11 of 14 norms with an activation, 4 with an addition."""
    torch.manual_seed(0)
    stem = [conv(3, 8), norm(8), nn.Hardswish()]
    blocks = [Bottleneck(8, 8, 2, norm), Bottleneck(16, 8, 1, norm), InvertedResidual(16, norm), PreActivation(16, norm)]
    return nn.Sequential(*stem, *blocks, TwoNorms(16, norm), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 4))
