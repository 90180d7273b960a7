"""Metrics of segmentation from numbers of pixels.

IoU of a class    = pixels of the class in labels and prediction / pixels of the class in either
mIoU              = mean over the classes that labels or predictions have
pixel accuracy    = pixels whose class is predicted / pixels

Pixels are counted in all images together, so the metrics are not means over images. Their items are jackknife pseudo-values, from
the metrics without each image.
"""

from __future__ import annotations

from torch import Tensor, stack

from anynorm.lab.tasks.segmentation.masks import IGNORED
from anynorm.lab.training.evaluation import Evaluation
from anynorm.lab.training.items import pseudo_values


def confusion_matrix(labels: Tensor, predictions: Tensor, num_classes: int) -> Tensor:
    """Return the number of pixels by label (row) and prediction (column), without ignored pixels.

    >>> import torch
    >>> confusion_matrix(torch.tensor([0, 1, 1, 255]), torch.tensor([0, 0, 1, 1]), 2)
    tensor([[1, 0],
            [1, 1]])
    """
    is_counted = labels != IGNORED
    pairs = labels[is_counted].long() * num_classes + predictions[is_counted].long()
    return pairs.bincount(minlength=num_classes**2).reshape(num_classes, num_classes)


def count_pixels(confusion: Tensor) -> Tensor:
    """Return the number of pixels of each class in both, in labels, and in predictions, (3, num_classes)."""
    return stack([confusion.diagonal(), confusion.sum(1), confusion.sum(0)])


def class_iou(counts: Tensor) -> Tensor:
    """Return the intersection over union of each class in percent; NaN for a class that neither labels nor predictions have.

    Args:
        counts: numbers of pixels, (…, 3, num_classes); see `count_pixels`.
    """
    both, labels, predictions = counts.double().unbind(-2)
    return 100 * both / (labels + predictions - both)


def segmentation_metrics(counts: Tensor) -> dict[str, float]:
    """Return mIoU and pixel accuracy in percent; see `class_iou`."""
    return {name: float(value) for name, value in _metrics(counts).items()}


def segmentation_evaluation(counts: Tensor) -> Evaluation:
    """Return mIoU and pixel accuracy in percent, with their pseudo-values.

    Args:
        counts: numbers of pixels of each image, (n, 3, num_classes).
    """
    total = counts.sum(0)
    metrics = segmentation_metrics(total)
    rest = _metrics(total - counts)
    return Evaluation(metrics, {name: pseudo_values(metrics[name], values.tolist()) for name, values in rest.items()})


def _metrics(counts: Tensor) -> dict[str, Tensor]:
    accuracy = 100 * counts[..., 0, :].sum(-1).double() / counts[..., 1, :].sum(-1).clamp(min=1)
    return {"mIoU": class_iou(counts).nanmean(-1), "pixel accuracy": accuracy}
