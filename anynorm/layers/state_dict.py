"""Preparation of a state_dict before it is loaded into a layer: missing entries of old checkpoints, and checks of values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anynorm.errors import StateError

if TYPE_CHECKING:
    from anynorm.layers.norm import Norm


def prepare_state_dict(norm: Norm, state_dict: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
    """Add missing entries of a layer to a state_dict, in place, and check the others.

    Args:
        norm: the layer.
        state_dict: the state_dict of a model.
        prefix: prefix of the layer's entries.
        metadata: metadata of the layer in the state_dict, with the version of the layer that saved it.

    An entry of another shape is left to torch, whose error lists those of all layers.

    Raises:
        StateError: if an entry has NaN values.
    """
    num_batches = norm.num_batches_tracked
    if num_batches is not None and (metadata.get("version") or 0) < 2:  # torch before 0.4.1 did not save it
        current = torch.zeros_like(num_batches, device="cpu") if num_batches.is_meta else num_batches
        state_dict.setdefault(prefix + "num_batches_tracked", current)
    for name, tensor in {**norm._parameters, **norm._buffers}.items():
        loaded = state_dict.get(prefix + name)
        if tensor is None or not isinstance(loaded, Tensor) or loaded.shape != tensor.shape or loaded.is_meta:
            continue
        if loaded.is_floating_point() and bool(loaded.isnan().any()):
            key = prefix + name
            raise StateError(
                f"'{key}' ({norm.spec}) must not contain NaN; the state_dict has {int(loaded.isnan().sum())} NaN of "
                f"{loaded.numel()} values, so its training had diverged. Load an earlier checkpoint, or replace them: "
                f"state_dict[{key!r}].nan_to_num_()."
            )
