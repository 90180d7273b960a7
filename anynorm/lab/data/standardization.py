"""Standardized images: mean 0 and variance 1 per channel over the training images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from anynorm.core.moments import Moments, pool, pool_stacked
from anynorm.kernels import moments

CHUNK_SIZE = 5000
"""Number of images converted to floating point at a time."""
MIN_STD = 1e-3
Sample = TypeVar("Sample")


class Standardized:
    """A dataset with the mean and the standard deviation of each channel, (c, 1, 1)."""

    mean: Tensor
    std: Tensor

    def standardize(self, images: Tensor) -> Tensor:
        """Return (images − mean) / std: mean 0 and variance 1 per channel over the training images; integers become float32."""
        x = images if images.is_floating_point() else images.float()
        mean, std = (values.to(x.device, x.dtype, non_blocking=True) for values in (self.mean, self.std))
        return (x - mean) / std


@dataclass(frozen=True)
class SampleDataset(Standardized, Generic[Sample]):
    """Training and test samples of named classes, such as videos.

    Attributes:
        train: the training samples.
        test: the test samples.
        class_names: the names of the classes; labels are their positions.
        mean: mean of each channel over training samples, (3, 1, 1).
        std: standard deviation of each channel over training samples, (3, 1, 1).
    """

    train: Sequence[Sample]
    test: Sequence[Sample]
    class_names: tuple[str, ...]
    mean: Tensor
    std: Tensor

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)


def channel_moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation (at least `MIN_STD`) per channel, (c, 1, 1), without a float64 copy of all images."""
    return pooled_moments(torch.split(images, CHUNK_SIZE))


def pooled_moments(batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation (at least `MIN_STD`) per channel over batches (n, c, h, w), also of different sizes."""
    chunks = [pool(moments(batch.double(), 1), (1, batch.shape[1], 1)) for batch in batches]
    pooled = pool_stacked(Moments(*(torch.stack(tables) for tables in zip(*chunks, strict=True))))
    return pooled.mean[0, :, :, None].float(), pooled.var[0, :, :, None].sqrt().float().clamp(min=MIN_STD)
