"""A small Vision Transformer (Dosovitskiy et al. 2021): patches, pre-norm blocks of attention and MLP, mean over tokens.

Tokens are (n, t, c), with nn.LayerNorm over c. Without a class token: the classifier reads the mean of all tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from anynorm.lab.data.shape import DataShape
from anynorm.lab.models.channels import scale_channels

CHANNELS_PER_HEAD = 16


class Attention(nn.Module):
    """Multi-head self-attention.

    Args:
        width: number of channels, a multiple of `CHANNELS_PER_HEAD`.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_heads = width // CHANNELS_PER_HEAD
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attention of tokens (n, t, c) to each other."""
        n, t, c = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        y: Tensor = self.proj(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, c))
        return y


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)).

    Args:
        width: number of channels.
        expansion: channels of the hidden layer of the MLP, relative to the width.
    """

    def __init__(self, width: int, *, expansion: int = 2) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, expansion * width), nn.GELU(), nn.Linear(expansion * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (n, t, c)."""
        x = x + self.attention(self.norm1(x))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class VisionTransformer(nn.Module):
    """A Vision Transformer.

    Args:
        shape: shape of the images, and the number of classes.
        width: number of channels.
        num_blocks: number of blocks.
        patch_size: height and width of a patch, in pixels.
    """

    def __init__(self, shape: DataShape, *, width: int, num_blocks: int, patch_size: int) -> None:
        super().__init__()
        num_tokens = (shape.height // patch_size) * (shape.width // patch_size)
        self.patches = nn.Conv2d(shape.channels, width, patch_size, patch_size)
        self.positions = nn.Parameter(nn.init.trunc_normal_(torch.empty(num_tokens, width), std=0.02))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(num_blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, shape.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, num_classes)."""
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        logits: Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return logits


def vit(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build a ViT of 4 blocks of 64 channels, nine norms; at most 8 × 8 patches for small images, else of 16 × 16 pixels."""
    patch_size = max(2, -(-max(shape.height, shape.width) // 8)) if shape.is_small else 16
    channels = scale_channels(64, width, CHANNELS_PER_HEAD)
    return VisionTransformer(shape, width=channels, num_blocks=4, patch_size=patch_size)
