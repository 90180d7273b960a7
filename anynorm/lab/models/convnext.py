"""A small ConvNeXt (Liu et al. 2022): depthwise convolution, LayerNorm over the channels, MLP per position.

Inside a block, the MLP and its norm read (n, h, w, c); the norms between stages read (n, c, h, w). Without the layer scale of the
paper, whose initial value of 1e-6 delays the short runs of comparisons.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from anynorm.lab.data.shape import DataShape
from anynorm.lab.models.channels import scale_channels


class LayerNorm2d(nn.LayerNorm):
    """LayerNorm over the channels of (n, c, h, w), as in torchvision."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized tensor, (n, c, h, w)."""
        y = functional.layer_norm(x.movedim(1, -1), self.normalized_shape, self.weight, self.bias, self.eps)
        return y.movedim(-1, 1)


class Block(nn.Module):
    """x + mlp(norm(depthwise(x))).

    Args:
        width: number of channels.
        kernel_size: kernel size of the depthwise convolution.
    """

    def __init__(self, width: int, *, kernel_size: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, kernel_size, padding=kernel_size // 2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return a feature map of the shape of x."""
        y: Tensor = self.mlp(self.norm(self.depthwise(x).movedim(1, -1))).movedim(-1, 1)
        return x + y


def build(shape: DataShape, num_blocks: Sequence[int], *, width: int, kernel_size: int) -> nn.Sequential:
    """Build a ConvNeXt; each stage after the first halves the resolution and doubles the width.

    Args:
        shape: shape of the images, and the number of classes.
        num_blocks: number of blocks of each stage.
        width: number of channels of the first stage.
        kernel_size: kernel size of the depthwise convolutions.
    """
    patch_size = 2 if shape.is_small else 4
    layers: list[nn.Module] = [nn.Conv2d(shape.channels, width, patch_size, patch_size), LayerNorm2d(width)]
    for stage, count in enumerate(num_blocks):
        if stage:
            layers += [LayerNorm2d(width), nn.Conv2d(width, 2 * width, 2, 2)]
            width *= 2
        layers += [Block(width, kernel_size=kernel_size) for _ in range(count)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(width), nn.Linear(width, shape.num_classes)]
    return nn.Sequential(*layers, *head)


def convnext(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a ConvNeXt of two stages of two blocks, 32 and 64 channels, seven norms; for images below 32 pixels 3 × 3 kernels."""
    kernel_size = 3 if min(shape.height, shape.width) < 32 else 7
    return build(shape, (2, 2), width=scale_channels(32, width), kernel_size=kernel_size)
