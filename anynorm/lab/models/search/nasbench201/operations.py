"""The operations of NAS-Bench-201 (Dong & Yang 2020, sec. 2); a convolution is ReLU – conv – norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.lab.models.search.supernet import Zero
from anynorm.layers.conditioning import is_conditional


class ConvNorm(nn.Module):
    """ReLU, convolution without bias, norm."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, kernel_size // 2, bias=False)
        self.norm: Any = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor, condition: int = 0) -> Tensor:
        """Return norm(conv(relu(x))); the condition is passed to a conditional norm."""
        y = self.conv(x.relu())
        inputs = (y, condition) if is_conditional(self.norm) else (y,)
        normalized: Tensor = self.norm(*inputs)
        return normalized


class Skip(nn.Module):
    """The operation `skip_connect`."""

    def forward(self, x: Tensor, *_: object) -> Tensor:
        """Return x."""
        return x


class AveragePool(nn.Module):
    """The operation `avg_pool_3x3`; positions outside the map are excluded from the mean."""

    def forward(self, x: Tensor, *_: object) -> Tensor:
        """Return the mean over 3 × 3 positions, by products with two matrices, which take 0.2 of the time of `avg_pool2d`."""
        height, width = (neighbor_means(size, x) for size in x.shape[2:])
        return height @ x @ width.T


def neighbor_means(size: int, like: Tensor) -> Tensor:
    """Return the matrix (size, size) that averages each position of a vector with its neighbors.

    Args:
        size: number of positions.
        like: tensor with the device and dtype of the result.

    >>> neighbor_means(3, torch.empty(()))
    tensor([[0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333],
            [0.0000, 0.5000, 0.5000]])
    """
    positions = torch.arange(size, device=like.device)
    band = ((positions[:, None] - positions).abs() <= 1).to(like.dtype)
    return band / band.sum(1, keepdim=True)


def make_operation(name: str, channels: int) -> nn.Module:
    """Return an operation of the space by name."""
    makers: dict[str, Callable[[], nn.Module]] = {
        "none": Zero,
        "skip_connect": Skip,
        "nor_conv_1x1": lambda: ConvNorm(channels, channels, 1),
        "nor_conv_3x3": lambda: ConvNorm(channels, channels, 3),
        "avg_pool_3x3": AveragePool,
    }
    return makers[name]()
