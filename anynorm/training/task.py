"""The interface between the trainer and what it trains."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from anynorm.data import ImageDataset


class Task(Protocol):
    """What is trained; `anynorm.tasks` has the implementations."""

    data: ImageDataset

    def __len__(self) -> int:
        """Return the number of training samples."""

    def batch(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of training samples; the generator is the only source of randomness."""

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Return the mean loss over a batch and the sum over its samples of every other metric."""

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the metrics of a model in eval mode, its loss among them."""
