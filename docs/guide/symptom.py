"""Tell how a network does in eval and in train mode, which looks at each batch."""

import copy
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from anynorm.diagnostics.ablation import accuracy


@torch.no_grad()
def set_condition(model: nn.Module, day: Iterable[Any], night: Iterable[Any]) -> None:
    """Print accuracies; train mode works on a copy, whose statistics it moves."""
    for when, batches in (("day", list(day)), ("night", list(night))):
        modes = model.eval(), copy.deepcopy(model).train()
        found = [sum(accuracy(one(x), (x, y)) or 0.0 for x, y in batches) / len(batches) for one in modes]
        sys.stdout.write(f"by {when:6} {found[0]:.1f} % in eval mode, {found[1]:.1f} % in train mode\n")
