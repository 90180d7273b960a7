"""Batches of somebody else's loader: tensors, tuples whose first entry is x, or dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anynorm.errors import SurgeryError

Forward = Callable[[nn.Module, Any], Any]


def call(model: nn.Module, batch: Any) -> Any:
    """Call a model with a batch: a tensor, the first of a tuple, or a dictionary."""
    return model(batch[0] if isinstance(batch, tuple | list) else batch)


class Calibration(NamedTuple):
    """Batches to fit on, and how the model is called with one."""

    data: Any
    forward: Forward


def calibration(data: Any, forward: Forward | None) -> Calibration | None:
    """Put batches and a forward together; None where there are no batches."""
    return None if data is None else Calibration(data, forward or call)


def gather(data: Any, most: int | None = None) -> Any:
    """Join calibration batches into one; a tensor, or a single batch, is one already."""
    if isinstance(data, Tensor | dict):
        return data
    batches = []
    seen = 0
    for batch in data:
        batches.append(batch)
        seen += size_of(batch)
        if most is not None and seen >= most:
            break
    if not batches:
        raise SurgeryError("The calibration data holds no batch.")
    return _join(batches)


def _join(batches: list[Any]) -> Any:
    first = batches[0]
    if isinstance(first, Tensor):
        return torch.cat(batches)
    if isinstance(first, dict):
        return {key: _join([batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple | list):
        return tuple(_join([batch[k] for batch in batches]) for k in range(len(first)))
    return first


def size_of(batch: Any) -> int:
    """Count the samples of a batch."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.dim() else 1
    values = batch.values() if isinstance(batch, dict) else batch
    return next(size_of(value) for value in values)


def twice(batch: Any) -> Any:
    """Give every tensor of a batch twice over, along the samples."""
    if isinstance(batch, Tensor):
        return torch.cat([batch, batch]) if batch.dim() else batch
    if isinstance(batch, dict):
        return {key: twice(value) for key, value in batch.items()}
    return tuple(twice(value) for value in batch) if isinstance(batch, tuple | list) else batch
