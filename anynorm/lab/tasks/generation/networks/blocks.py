"""Blocks of generators and discriminators.

    UpBlock      norm ─ relu ─ upsample ─ conv ─ norm ─ relu ─ conv,   shortcut  upsample ─ conv 1×1
    DownBlock    relu ─ conv ─ relu ─ conv ─ pool,                     shortcut  conv 1×1 ─ pool

Norms are built as `nn.BatchNorm2d`, and replaced by the norms of a run. Convolutions are made by a function, which may add
spectral normalization.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

Layer = Callable[..., nn.Module]


def conv2d(in_channels: int, out_channels: int, kernel_size: int) -> nn.Module:
    """Return a convolution that keeps the resolution."""
    return nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2)


def xavier(layer: nn.Module) -> nn.Module:
    """Initialize a convolution, linear layer or embedding as in SNGAN: Xavier-uniform weights, biases 0."""
    nn.init.xavier_uniform_(layer.weight)  # type: ignore[arg-type]
    return _zero_bias(layer)


def small_normal(layer: nn.Module) -> nn.Module:
    """Initialize a layer as in the settings of BigGAN for CIFAR: weights N(0, 0.02), biases 0."""
    nn.init.normal_(layer.weight, 0.0, 0.02)  # type: ignore[arg-type]
    return _zero_bias(layer)


def _zero_bias(layer: nn.Module) -> nn.Module:
    if isinstance(getattr(layer, "bias", None), Tensor):
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


def spectral(layer: nn.Module) -> nn.Module:
    """Divide the weight of a layer by its spectral norm in every forward pass (Miyato et al. 2018)."""
    return spectral_norm(layer)


def resize(x: Tensor, size: int, mode: str = "nearest") -> Tensor:
    """Resize square feature maps, by nearest or bilinear interpolation."""
    return nn.functional.interpolate(x, size=(size, size), mode=mode, align_corners=None if mode == "nearest" else False)


class UpBlock(nn.Module):
    """A residual block that doubles the resolution.

    Args:
        in_channels: number of channels of the input.
        out_channels: number of channels of the output.
        conv: a function of (in_channels, out_channels, kernel_size) that returns a convolution.
        norm: a function of the number of channels that returns a norm.
    """

    def __init__(self, in_channels: int, out_channels: int, conv: Layer, norm: Layer = nn.BatchNorm2d) -> None:
        super().__init__()
        self.norm1, self.conv1 = norm(in_channels), conv(in_channels, out_channels, 3)
        self.norm2, self.conv2 = norm(out_channels), conv(out_channels, out_channels, 3)
        self.shortcut = conv(in_channels, out_channels, 1)

    def forward(self, x: Tensor, *embedding: Tensor) -> Tensor:
        """Return the output of the block; the embedding is passed to norms with a predicted affine."""
        size = 2 * x.shape[-1]
        hidden = self.conv1(resize(self.norm1(x, *embedding).relu(), size))
        h: Tensor = self.conv2(self.norm2(hidden, *embedding).relu())
        # A 1×1 convolution commutes with nearest upsampling; before it, it costs a quarter.
        shortcut: Tensor = resize(self.shortcut(x), size)
        return h + shortcut


class DownBlock(nn.Module):
    """A residual block that halves the resolution, or keeps it.

    Args:
        in_channels: number of channels of the input.
        out_channels: number of channels of the output.
        conv: a function of (in_channels, out_channels, kernel_size) that returns a convolution.
        pool: whether to halve the resolution by average pooling.
        first: whether this is the first block, which has no activation before its first convolution.
    """

    def __init__(self, in_channels: int, out_channels: int, conv: Layer, *, pool: bool, first: bool = False) -> None:
        super().__init__()
        hidden = out_channels if first else in_channels
        self.conv1, self.conv2 = conv(in_channels, hidden, 3), conv(hidden, out_channels, 3)
        self.activation: nn.Module = nn.Identity() if first else nn.ReLU()
        self.pool: nn.Module = nn.AvgPool2d(2) if pool else nn.Identity()
        needs_conv = pool or in_channels != out_channels
        self.shortcut: nn.Module = conv(in_channels, out_channels, 1) if needs_conv else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        h: Tensor = self.pool(self.conv2(self.conv1(self.activation(x)).relu()))
        shortcut: Tensor = self.shortcut(self.pool(x))  # the order does not change the result; this one is cheaper
        return h + shortcut


class SelfAttention(nn.Module):
    """Self-attention over positions, added to the input with a weight that starts at 0 (Zhang et al. 2019)."""

    def __init__(self, channels: int, conv: Layer) -> None:
        super().__init__()
        self.query, self.key = conv(channels, max(1, channels // 8), 1), conv(channels, max(1, channels // 8), 1)
        self.value, self.output = conv(channels, max(1, channels // 2), 1), conv(max(1, channels // 2), channels, 1)
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Return x + weight · attention(x)."""
        query = self.query(x).flatten(2).transpose(1, 2)
        key, value = (nn.functional.max_pool2d(part(x), 2).flatten(2).transpose(1, 2) for part in (self.key, self.value))
        attended = nn.functional.scaled_dot_product_attention(query, key, value, scale=1.0)
        mixed = self.output(attended.transpose(1, 2).reshape(len(x), -1, *x.shape[2:]))
        output: Tensor = x + self.weight * mixed
        return output
