"""Johnson's network for a single style (Johnson et al. 2016; sn appendix F).

    9 × 9 conv, 32 channels ─▶ two 3 × 3 convs of stride 2, 64 and 128 ─▶ five residual blocks
                            ─▶ two upsamplings with 3 × 3 convs, 64 and 32 ─▶ 9 × 9 conv

A norm follows every convolution except the last, whose output is mapped to [0, 1] by a tanh. There are two differences from the
original, both common in later work: every convolution uses reflection padding (the original pads the image once by 40 pixels),
and nearest upsampling with a convolution replaces transposed convolutions, which cause checkerboard patterns.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anynorm.lab.models.channels import scale_channels

NUM_BLOCKS = 5


class Residual(nn.Module):
    """Two convolutions, each with a norm, and an identity shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(channels, channels, 3), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = _conv(channels, channels, 3), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus the output of the two convolutions."""
        h = self.norm1(self.conv1(x)).relu()
        y: Tensor = x + self.norm2(self.conv2(h))
        return y


class JohnsonNetwork(nn.Module):
    """Network from images in [0, 1] to stylized images in [0, 1], of at least 9 × 9 pixels; built with BatchNorm.

    Args:
        width: multiplier of the number of channels.
    """

    min_size = 9

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        small, middle, large = (scale_channels(channels, width) for channels in (32, 64, 128))
        self.encoder = nn.Sequential(
            *_conv_norm_relu(3, small, 9),
            *_conv_norm_relu(small, middle, 3, stride=2),
            *_conv_norm_relu(middle, large, 3, stride=2),
        )
        self.blocks = nn.Sequential(*(Residual(large) for _ in range(NUM_BLOCKS)))
        self.decoder = nn.Sequential(
            nn.Upsample(scale_factor=2),
            *_conv_norm_relu(large, middle, 3),
            nn.Upsample(scale_factor=2),
            *_conv_norm_relu(middle, small, 3),
            _conv(small, 3, 9),
        )

    @torch.no_grad()
    def scale_last_layer(self, factor: float) -> None:
        """Multiply the weights of the last convolution by a factor: below 1, tanh does not saturate at the start."""
        for parameter in self.decoder[-1].parameters():
            parameter.mul_(factor)

    def forward(self, images: Tensor) -> Tensor:
        """Return stylized images of the same size."""
        height, width = images.shape[2:]
        h = self.decoder(self.blocks(self.encoder(images)))
        return (1 + torch.tanh(h[..., :height, :width])) / 2


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, padding_mode="reflect")


def _conv_norm_relu(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    return [_conv(inputs, outputs, size, stride), nn.BatchNorm2d(outputs), nn.ReLU()]
