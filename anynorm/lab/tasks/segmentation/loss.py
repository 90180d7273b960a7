"""Loss and accuracy of segmentation over the pixels with a class; `IGNORED` pixels do not count.

loss = cross entropy of the head + aux_weight · cross entropy of the auxiliary head         means over pixels with a class
"""

from __future__ import annotations

from torch import Tensor, nn

from anynorm.lab.tasks.segmentation.masks import IGNORED


def segmentation_loss(logits: tuple[Tensor, Tensor], labels: Tensor, aux_weight: float, label_smoothing: float = 0.0) -> Tensor:
    """Return the loss of both heads.

    Args:
        logits: of the head and of the auxiliary head, each (n, num_classes, h, w).
        labels: classes or `IGNORED`, (n, h, w).
        aux_weight: weight of the auxiliary head.
        label_smoothing: as in `torch.nn.functional.cross_entropy`.
    """
    loss, aux_loss = (_cross_entropy(each, labels, label_smoothing) for each in logits)
    return loss + aux_weight * aux_loss


def _cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return the mean cross entropy of pixels with a class; 0 if there are none."""
    targets = labels.long()
    total = nn.functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
    return total / _count_pixels(labels)


def pixel_accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the fraction of correctly classified pixels in percent; 0 if no pixel has a class.

    >>> import torch
    >>> pixel_accuracy(torch.tensor([[[[0.0, 1.0]], [[1.0, 0.0]]]]), torch.tensor([[[1, 255]]]))
    tensor(100.)
    """
    return 100 * (logits.detach().argmax(1) == labels).sum() / _count_pixels(labels)


def _count_pixels(labels: Tensor) -> Tensor:
    """Return the number of pixels with a class, at least 1."""
    return (labels != IGNORED).sum().clamp(min=1)
