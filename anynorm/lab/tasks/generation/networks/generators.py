"""Generators of images from latent vectors: SNGAN (Miyato et al. 2018), BigGAN (Brock et al. 2019), AutoGAN (Gong et al. 2019).

    z ─ linear ─ blocks, each doubling the resolution ─ output_norm ─ relu ─ conv ─ tanh

The norms of the blocks may be class-conditional: call a generator inside `with anynorm.condition(generator, labels):`. The last
norm, `output_norm`, is unconditional.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.errors import ConditionError
from anynorm.lab.tasks.generation.networks.blocks import Layer, SelfAttention, UpBlock, resize, small_normal
from anynorm.layers.conditioning import read_labels


class Generator(nn.Module):
    """Base class of generators.

    Args:
        latent_size: number of entries of a latent vector.
        channels: number of channels after the linear layer and after each block.
        bottom: height and width after the linear layer.
        out_channels: number of channels of an image.
        conv: a function of (in_channels, out_channels, kernel_size) that returns a convolution.
        linear: a function of (in_features, out_features) that returns a linear layer.
    """

    def __init__(
        self, latent_size: int, channels: list[int], bottom: int, out_channels: int, *, conv: Layer, linear: Layer
    ) -> None:
        super().__init__()
        self.latent_size, self.bottom = latent_size, bottom
        self.linear = linear(latent_size, channels[0] * bottom * bottom)
        self.blocks = self._make_blocks(channels, conv)
        self.output_norm, self.output_conv = nn.BatchNorm2d(channels[-1]), conv(channels[-1], out_channels, 3)

    def _make_blocks(self, channels: list[int], conv: Layer) -> nn.ModuleList:
        return nn.ModuleList(UpBlock(before, after, conv) for before, after in pairwise(channels))

    def forward(self, z: Tensor) -> Tensor:
        """Return images in [−1, 1], (n, c, h, w), of latent vectors (n, latent_size)."""
        return self._to_image(self._run_blocks(self._first_map(z)))

    def _first_map(self, z: Tensor) -> Tensor:
        x: Tensor = self.linear(z).view(len(z), -1, self.bottom, self.bottom)
        return x

    def _run_blocks(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def _to_image(self, x: Tensor) -> Tensor:
        image: Tensor = self.output_conv(self.output_norm(x).relu())
        return image.tanh()


class SharedEmbedding(nn.Module):
    """An embedding of the class of each sample; the classes are set by `anynorm.condition`."""

    takes_condition = True

    def __init__(self, num_classes: int, size: int) -> None:
        super().__init__()
        self.num_classes, self.size = num_classes, size
        self.table = small_normal(nn.Embedding(num_classes, size))
        self._condition: Any = None

    def set_condition(self, value: Any) -> None:
        """Set the classes of the next forward pass."""
        self._condition = value

    def forward(self, z: Tensor) -> Tensor:
        """Return the embeddings (n, size) of the classes of n latent vectors.

        Raises:
            ConditionError: if no classes are set, or if the classes do not fit the latent vectors.
        """
        if self._condition is None:
            raise ConditionError("the generator needs classes: call it inside `with anynorm.condition(generator, labels):`.")
        embedding: Tensor = self.table(read_labels(self._condition, z, self.num_classes))
        return embedding


class PredictedAffineNorm(nn.Module):
    """A norm whose scale and shift are linear functions of an embedding: the conditional BN of BigGAN.

    Args:
        channels: number of channels.
        embedding_size: number of entries of an embedding.
        linear: a function of (in_features, out_features) that returns a linear layer.
    """

    def __init__(self, channels: int, embedding_size: int, linear: Layer) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.scale, self.shift = (linear(embedding_size, channels, bias=False) for _ in range(2))

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """Return the normalized input times 1 + scale(embedding), plus shift(embedding)."""
        output: Tensor = self.norm(x, (self.shift(embedding), 1 + self.scale(embedding)))
        return output


class BigGANGenerator(Generator):
    """The generator of SNGAN with optional self-attention and an optional shared embedding of classes.

    With a shared embedding, the norms must have a predicted affine (`bn.style`, `bn.sastyle`, …). The scale and shift of the
    norms of a block are linear functions of the embedding of the class and a part of z; another part of z is the input of the
    first layer.

    Args:
        latent_size: number of entries of a latent vector.
        channels: number of channels after the linear layer and after each block.
        args: `bottom` and `out_channels` of `Generator`.
        attention: number of the block, from 1, after which self-attention is inserted; 0 for none.
        embedding: the shared embedding; None for norms without a predicted affine.
        conv: a function of (in_channels, out_channels, kernel_size) that returns a convolution.
        linear: a function of (in_features, out_features) that returns a linear layer.
    """

    def __init__(
        self,
        latent_size: int,
        channels: list[int],
        *args: int,
        attention: int,
        embedding: SharedEmbedding | None,
        conv: Layer,
        linear: Layer,
    ) -> None:
        parts = len(channels) if embedding is not None else 1
        self.part_sizes = [latent_size // parts] * (parts - 1) + [latent_size - latent_size // parts * (parts - 1)]
        self._norm: Layer = nn.BatchNorm2d
        if embedding is not None:
            self._norm = partial(PredictedAffineNorm, embedding_size=embedding.size + self.part_sizes[0], linear=linear)
        super().__init__(self.part_sizes[-1], channels, *args, conv=conv, linear=linear)
        del self._norm
        self.latent_size, self.embedding, self.attention_after = latent_size, embedding, attention
        self.attention = SelfAttention(channels[attention], conv) if attention else None

    def _make_blocks(self, channels: list[int], conv: Layer) -> nn.ModuleList:
        return nn.ModuleList(UpBlock(before, after, conv, self._norm) for before, after in pairwise(channels))

    def forward(self, z: Tensor) -> Tensor:
        """Return images in [−1, 1], (n, c, h, w), of latent vectors (n, latent_size)."""
        *parts, first = torch.split(z, self.part_sizes, 1)
        x = self._first_map(first)
        embedding = None if self.embedding is None else self.embedding(z)
        for number, block in enumerate(self.blocks, 1):
            x = block(x) if embedding is None else block(x, torch.cat([embedding, parts[number - 1]], 1))
            if self.attention is not None and number == self.attention_after:
                x = self.attention(x)
        return self._to_image(x)


class Cell(UpBlock):
    """A block of AutoGAN, with skip connections from the inputs of the second norms of earlier cells to that of this cell.

    Args:
        in_channels: number of channels of the input.
        out_channels: number of channels of the output.
        conv: a function of (in_channels, out_channels, kernel_size) that returns a convolution.
        mode: mode of upsampling, "nearest" or "bilinear".
        num_before: number of cells before this cell.
        has_shortcut: whether to add the upsampled input to the output.
    """

    def __init__(
        self, in_channels: int, out_channels: int, conv: Layer, *, mode: str, num_before: int, has_shortcut: bool
    ) -> None:
        super().__init__(in_channels, out_channels, conv)
        self.mode = mode
        self.skips = nn.ModuleList(conv(out_channels, out_channels, 1) for _ in range(num_before))
        if not has_shortcut:
            del self.shortcut
        self.has_shortcut = has_shortcut

    def forward(self, x: Tensor, skip_inputs: list[Tensor]) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return the output of the cell, and the input of its second norm for later cells, as in the release of AutoGAN.

        Args:
            x: the output of the previous cell.
            skip_inputs: the inputs of the second norms of earlier cells.
        """
        size = 2 * x.shape[-1]
        hidden: Tensor = self.conv1(resize(self.norm1(x).relu(), size, self.mode))
        for skip, features in zip(self.skips, skip_inputs, strict=True):
            hidden = hidden + skip(resize(features, size, self.mode))
        h = self.conv2(self.norm2(hidden).relu())
        return (h + self.shortcut(resize(x, size, self.mode)) if self.has_shortcut else h), hidden


class AutoGANGenerator(Generator):
    """The generator that AutoGAN's search ranks first ("top 1").

    It has three cells, for images of 32 × 32 pixels. For other sizes the modes of upsampling alternate in the same way, all cells
    but the last have shortcuts, and each cell has skip connections from all earlier cells.
    """

    def _make_blocks(self, channels: list[int], conv: Layer) -> nn.ModuleList:
        last = len(channels) - 2
        return nn.ModuleList(
            Cell(
                channels[k],
                channels[k + 1],
                conv,
                mode=("nearest", "bilinear")[k % 2],
                num_before=k,
                has_shortcut=k < last,
            )
            for k in range(last + 1)
        )

    def _run_blocks(self, x: Tensor) -> Tensor:
        skip_inputs: list[Tensor] = []
        for cell in self.blocks:
            x, hidden = cell(x, skip_inputs)
            skip_inputs.append(hidden)
        return x
