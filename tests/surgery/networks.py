"""Networks and norm classes that several test files use."""

from typing import Any

import torch
from torch import nn

from anynorm.surgery.find import find_norms
from tests.helpers import data


class Residual(nn.Module):
    """A basic residual block."""

    def __init__(self, inputs, width, stride=1, norm=nn.BatchNorm2d):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), norm(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), norm(width)
        self.downsample = None
        if stride > 1 or inputs != width:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), norm(width))

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


def network(norm=nn.BatchNorm2d) -> Any:
    """A stem and two residual blocks, with six norms."""
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), norm(16), nn.ReLU()]
    return nn.Sequential(*stem, Residual(16, 16, norm=norm), Residual(16, 32, 2, norm=norm), nn.Flatten(2))


def trained(model):
    """Set the affine of all norms to random values, and update their running statistics."""
    torch.manual_seed(1)
    with torch.no_grad():
        for site in find_norms(model):
            for name, parameter in site.module.named_parameters():
                parameter.normal_(1.0 if "weight" in name else 0.0, 0.3)
    for _ in range(4):
        model(data(8, 3, 8, 8, mean=0.3, std=1.5))
    return model


X = data(4, 3, 8, 8)


def relative(a, b):
    """The relative distance of a from b."""
    return float(((a - b).norm() / b.norm()).detach())


class BatchNormAct2d(nn.BatchNorm2d):
    """The class of timm: norm, dropout and activation in one module."""

    def __init__(self, channels):
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.ReLU()

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


class FrozenBatchNorm2d(nn.Module):
    """The class of torchvision and detectron2."""

    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.eps = eps
        for name, start in (("weight", 1.5), ("bias", 0.1), ("running_mean", 0.3), ("running_var", 2.0)):
            self.register_buffer(name, torch.full((channels,), start))

    def forward(self, x):
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return x * scale[:, None, None] + (self.bias - self.running_mean * scale)[:, None, None]


class LayerNorm2d(nn.LayerNorm):
    """The class of torchvision and timm: statistics over the channels of each position."""

    def forward(self, x):
        return nn.functional.layer_norm(x.movedim(1, -1), self.normalized_shape, self.weight, self.bias, self.eps).movedim(-1, 1)
