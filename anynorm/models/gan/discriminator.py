"""The projection discriminator (Miyato & Koyama 2018), spectrally normalized.

image ─ blocks ─ relu ─ sum over positions = h,     D(x, y) = ⟨w, h⟩ + ⟨embedding(y), h⟩
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from anynorm.models.gan.blocks import DownBlock, Layer, SelfAttention


class Discriminator(nn.Module):
    """A discriminator of images and classes.

    Args:
        channels: number of channels of an image and after each block.
        num_down: number of blocks that halve the resolution, the first ones.
        num_classes: number of classes.
        conv: makes a convolution from (in_channels, out_channels, kernel_size).
        linear: makes a linear layer without bias from (in_features, out_features).
        embedding: makes an embedding from (num_classes, size).
        attention: number of the block that self-attention follows, from 1; 0 for none.
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
        """Return one logit per image, (n,): positive for real ones.

        Args:
            images: (n, c, h, w), in [−1, 1].
            labels: the class of each image, (n,).
        """
        h = self.blocks(images).relu().sum((2, 3))
        logits: Tensor = self.linear(h).squeeze(1) + (self.embedding(labels) * h).sum(1)
        return logits
