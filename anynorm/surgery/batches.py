"""Batches of a data loader: tensors, tuples whose first entry is x, or dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from anynorm.errors import SurgeryError

Forward = Callable[[nn.Module, Any], Any]


def call(model: nn.Module, batch: Any) -> Any:
    """Call a model with one batch: a tensor, a dictionary, or a tuple of which the model gets the first entry."""
    return model(batch[0] if isinstance(batch, tuple | list) else batch)


class Calibration(NamedTuple):
    """Calibration batches, and the function that calls the model with one."""

    data: Any
    forward: Forward


def calibration(data: Any, forward: Forward | None) -> Calibration | None:
    """Combine batches and a forward function; None if data is None."""
    return None if data is None else Calibration(data, forward or call)


def gather(data: Any) -> Any:
    """Concatenate calibration batches into one; a tensor or a dictionary is a single batch already.

    Raises:
        SurgeryError: if there is no batch.

    >>> gather([torch.zeros(2, 3), torch.zeros(4, 3)]).shape
    torch.Size([6, 3])
    """
    if isinstance(data, Tensor | Mapping):
        return _plain(data)
    batches = [_plain(batch) for batch in data]
    if not batches:
        raise SurgeryError("fit= must hold at least one calibration batch; got none.")
    return tree_map(lambda *leaves: torch.cat(leaves) if isinstance(leaves[0], Tensor) else leaves[0], *batches)


def _plain(batch: Any) -> Any:
    """Turn a mapping of any class into a dict: pytree takes an unknown class for a leaf."""
    return dict(batch) if isinstance(batch, Mapping) else batch


def size_of(batch: Any) -> int:
    """Return the number of samples in one batch."""
    tensor = next(leaf for leaf in tree_leaves(_plain(batch)) if isinstance(leaf, Tensor))
    return len(tensor) if tensor.dim() else 1


def duplicate(batch: Any) -> Any:
    """Return a batch that holds every sample twice: first all of them, then all of them again."""
    return tree_map_only(Tensor, lambda tensor: torch.cat([tensor, tensor]) if tensor.dim() else tensor, _plain(batch))
