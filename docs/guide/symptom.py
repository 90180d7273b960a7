"""Accuracy of a network in eval mode, with its running statistics, and in train mode, with the statistics of each batch."""

import copy
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from anynorm.diagnostics import accuracy


@torch.no_grad()
def print_accuracies(model: nn.Module, day: Iterable[Any], night: Iterable[Any]) -> None:
    """Print the accuracy on both data sets in both modes; train mode runs on a copy, because it updates running statistics."""
    for name, loader in (("day", day), ("night", night)):
        batches = list(loader)
        modes = {"eval": model.eval(), "train": copy.deepcopy(model).train()}
        scores = {mode: sum(accuracy(net(x), (x, y)) or 0.0 for x, y in batches) / len(batches) for mode, net in modes.items()}
        sys.stdout.write(f"{name:6} {scores['eval']:.1f} % in eval mode, {scores['train']:.1f} % in train mode\n")
