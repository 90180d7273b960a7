"""Samples of a distillation: indexing, augmentation, and the split into a training and a held-out part.

All batches are concatenated into one, which stays in memory. A minibatch is a random choice of its samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from anynorm.errors import SurgeryError
from anynorm.surgery.batches import gather, image_list, is_one_input, size_of

Augment = Callable[[Tensor, torch.Generator], Tensor]
MIN_SIDE = 16  # smaller images are not shifted
SHIFT = 8  # images are shifted by at most 1/8 of their side
HELD_OUT = 0.1
MAX_HELD_OUT = 256


def shift_and_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Flip half of the images from left to right, and shift each by at most 1/8 of its side; the border is mirrored.

    Args:
        x: images (n, c, h, w); other tensors, and images with a side below 16, are returned as they are.
        generator: the random numbers.
    """
    if x.dim() != 4 or not x.is_floating_point() or x.shape[1] not in (1, 3) or min(x.shape[2:]) < MIN_SIDE:
        return x
    n, _, height, width = x.shape
    margins = height // SHIFT, width // SHIFT
    padded = functional.pad(x, (margins[1], margins[1], margins[0], margins[0]), mode="reflect")
    top = torch.randint(0, 2 * margins[0] + 1, (n,), generator=generator).tolist()
    left = torch.randint(0, 2 * margins[1] + 1, (n,), generator=generator).tolist()
    shifted = torch.stack([image[:, i : i + height, j : j + width] for image, i, j in zip(padded, top, left, strict=True)])
    flipped = (torch.rand(n, generator=generator) < 0.5).to(x.device)
    return torch.where(flipped[:, None, None, None], shifted.flip(-1), shifted)


def select(batch: Any, indices: Tensor, size: int) -> Any:
    """Return some samples of a batch: of each tensor and list of images with one entry per sample.

    >>> select((torch.arange(4), "name"), torch.tensor([2, 0]), 4)
    (tensor([2, 0]), 'name')
    """
    chosen = indices.tolist()
    if isinstance(batch, list) and is_one_input(batch):
        return [batch[k] for k in chosen]
    if image_list(batch) is not None:
        if isinstance(batch, Mapping):
            return {name: _entries(value, chosen, size) for name, value in batch.items()}
        return tuple(_entries(value, chosen, size) for value in batch)
    plain = dict(batch) if isinstance(batch, Mapping) else batch
    return tree_map(lambda leaf: leaf[indices.to(leaf.device)] if _has_samples(leaf, size) else leaf, plain)


def _entries(value: Any, chosen: list[int], size: int) -> Any:
    if isinstance(value, Tensor):
        return value[chosen] if _has_samples(value, size) else value
    return [value[k] for k in chosen] if isinstance(value, list | tuple) and len(value) == size else value


def _has_samples(leaf: Any, size: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == size


@dataclass(frozen=True)
class Samples:
    """The samples of a distillation.

    Attributes:
        batch: all samples, as one batch.
        size: their number.
        train: indices of the samples to train on.
        held_out: indices of the other samples, by which the best state is chosen.
        batch_size: number of samples of a minibatch.
        augment: the augmentation of a minibatch; None for none.
    """

    batch: Any
    size: int
    train: Tensor
    held_out: Tensor
    batch_size: int
    augment: Augment | None

    def minibatch(self, generator: torch.Generator) -> Any:
        """Return a random minibatch, with augmentation."""
        order = torch.randperm(len(self.train), generator=generator)[: self.batch_size]
        return self.augmented(select(self.batch, self.train[order], self.size), generator)

    def augmented(self, batch: Any, generator: torch.Generator) -> Any:
        """Return a batch with its first tensor augmented."""
        if self.augment is None or image_list(batch) is not None:
            return batch
        if isinstance(batch, Tensor):
            return self.augment(batch, generator)
        if isinstance(batch, tuple | list) and batch and isinstance(batch[0], Tensor):
            return (self.augment(batch[0], generator), *batch[1:])
        return batch

    def parts(self, indices: Tensor) -> list[Any]:
        """Return the samples at some indices, as batches of at most `batch_size`."""
        return [select(self.batch, part, self.size) for part in torch.split(indices, self.batch_size)]


def read_samples(data: Any, batch_size: int, augment: Augment | None, generator: torch.Generator) -> Samples:
    """Gather the batches of a loader, and choose the held-out part: a tenth of the samples, 256 at most.

    Raises:
        SurgeryError: if there are too few samples for one minibatch and a held-out part.
    """
    try:
        batch = gather(data)
    except SurgeryError:
        raise SurgeryError("distill needs at least one batch of data; got none. The model is unchanged.") from None
    size = size_of(batch)
    held_out = min(MAX_HELD_OUT, max(1, round(HELD_OUT * size)))
    if size - held_out < batch_size:
        needed = next(
            n for n in range(size, 3 * batch_size + 3) if n - min(MAX_HELD_OUT, max(1, round(HELD_OUT * n))) >= batch_size
        )
        raise SurgeryError(
            f"distill needs at least {needed} samples for minibatches of {batch_size} and a held-out part of a tenth; got "
            f"{size}. Pass more samples, or a smaller batch_size. The model is unchanged."
        )
    order = torch.randperm(size, generator=generator)
    return Samples(batch, size, order[held_out:], order[:held_out], batch_size, augment)


def tensors_of(value: Any) -> list[Tensor]:
    """Return the floating-point tensors in a nested value."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
