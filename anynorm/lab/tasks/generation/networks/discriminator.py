"""The projection discriminator (Miyato & Koyama 2018) with spectral normalization.

image ─ blocks ─ relu ─ sum over positions = h,     D(x, y) = ⟨w, h⟩ + ⟨embedding(y), h⟩
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from anynorm.lab.tasks.generation.networks.blocks import DownBlock, Layer, SelfAttention


class Discriminator(nn.Module):
    """A class-conditional discriminator of images.

    Args:
        channels: number of channels of an image and after each block.
        num_down: number of blocks that halve the resolution; these are the first blocks.
        num_classes: number of classes.
        conv: a function of (in_channels, out_channels, kernel_size) that returns a convolution.
        linear: a function of (in_features, out_features) that returns a linear layer without bias.
        embedding: a function of (num_classes, size) that returns an embedding.
        attention: number of the block, from 1, after which self-attention is inserted; 0 for none.
    """

    def __init__(
        self,
        channels: list[int],
        num_down: int,
        num_classes: int,
        *,
        conv: Layer,
        linear: Layer,
        embedding: Layer,
        attention: int = 0,
    ) -> None:
        super().__init__()
        self.blocks = nn.Sequential()
        for number, (before, after) in enumerate(pairwise(channels), 1):
            self.blocks.append(DownBlock(before, after, conv, pool=number <= num_down, first=number == 1))
            if number == attention:
                self.blocks.append(SelfAttention(after, conv))
        self.linear, self.embedding = linear(channels[-1], 1), embedding(num_classes, channels[-1])

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return one logit per image, (n,), positive for real images.

        Args:
            images: (n, c, h, w), in [−1, 1].
            labels: the class of each image, (n,).
        """
        h = self.blocks(images).relu().sum((2, 3))
        logits: Tensor = self.linear(h).squeeze(1) + (self.embedding(labels) * h).sum(1)
        return logits
