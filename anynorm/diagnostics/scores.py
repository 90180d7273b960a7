"""Scores of the output of a model, in percent: accuracy, and agreement with another output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Score = Callable[[Any, Any], float | None]
"""A function of (output, batch) that returns a score, or None if the output cannot be scored."""


def accuracy(output: Any, batch: Any) -> float | None:
    """Return the top-1 accuracy in percent of an output (n, classes) for a batch (x, labels).

    Returns:
        The accuracy, or None if the output is not a tensor (n, classes).

    >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), (None, torch.tensor([1, 1])))
    50.0
    """
    labels: Tensor = batch[1]
    if not isinstance(output, Tensor) or output.dim() != 2 or len(output) != len(labels):
        return None
    return 100 * float((output.argmax(1) == labels.to(output.device)).double().mean())


def agreement(reference: Tensor, output: Tensor) -> float:
    """Return the percentage of samples for which two outputs (n, classes) predict the same class.

    >>> agreement(torch.eye(2), torch.ones(2, 2).triu())
    100.0
    """
    return 100 * float((torch.argmax(output, 1) == torch.argmax(reference, 1)).double().mean())
