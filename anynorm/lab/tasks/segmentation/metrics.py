"""Metrics of segmentation from the confusion matrix of all pixels.

IoU of a class    = pixels of the class in labels and prediction / pixels of the class in either
mIoU              = mean over the classes that labels or predictions have
pixel accuracy    = pixels whose class is predicted / pixels
"""

from __future__ import annotations

from torch import Tensor

from anynorm.lab.tasks.segmentation.masks import IGNORED


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


def class_iou(confusion: Tensor) -> Tensor:
    """Return the intersection over union of each class in percent; NaN for a class that neither labels nor predictions have."""
    confusion = confusion.double()
    intersection = confusion.diagonal()
    return 100 * intersection / (confusion.sum(0) + confusion.sum(1) - intersection)


def segmentation_metrics(confusion: Tensor) -> dict[str, float]:
    """Return mIoU and pixel accuracy in percent."""
    accuracy = 100 * confusion.diagonal().sum().double() / confusion.sum().clamp(min=1)
    return {"mIoU": float(class_iou(confusion).nanmean()), "pixel accuracy": float(accuracy)}
