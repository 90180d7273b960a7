"""Preparation of a state_dict before it is loaded into a layer: missing entries of old checkpoints, and checks of values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anynorm.errors import ShapeError, StateError

if TYPE_CHECKING:
    from anynorm.layers.norm import Norm


def prepare_state_dict(norm: Norm, state_dict: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
    """Add missing entries of a layer to a state_dict, in place, and check the others.

    Args:
        norm: the layer.
        state_dict: the state_dict of a model.
        prefix: prefix of the layer's entries.
        metadata: metadata of the layer in the state_dict, with the version of the layer that saved it.

    Raises:
        ShapeError: if the shape of an entry is not that of the layer's tensor.
        StateError: if an entry has NaN values.
    """
    num_batches = norm.num_batches_tracked
    if num_batches is not None and (metadata.get("version") or 0) < 2:  # torch before 0.4.1 did not save it
        device = "cpu" if num_batches.is_meta else num_batches.device
        state_dict.setdefault(prefix + "num_batches_tracked", torch.zeros_like(num_batches, device=device))
    for name, tensor in {**norm._parameters, **norm._buffers}.items():
        loaded = state_dict.get(prefix + name)
        if tensor is not None and isinstance(loaded, Tensor):
            _check_entry(norm, prefix + name, loaded, tensor)


def _check_entry(norm: Norm, key: str, loaded: Tensor, tensor: Tensor) -> None:
    if loaded.shape != tensor.shape and not (
        tensor.dim() == 0 and loaded.shape == (1,)
    ):  # torch 0.3 stored scalars with shape (1,)
        raise ShapeError(
            f"'{key}' of {norm.spec} with {norm.num_features} channels must have shape {tuple(tensor.shape)}; the state_dict "
            f"has {tuple(loaded.shape)}. Construct the layer with the checkpoint's spec and number of channels."
        )
    if loaded.is_floating_point() and not loaded.is_meta and bool(loaded.isnan().any()):
        raise StateError(
            f"'{key}' ({norm.spec}) must not contain NaN; the state_dict has {int(loaded.isnan().sum())} NaN of {loaded.numel()} "
            "values, so its training had diverged. Load an earlier checkpoint, or replace them by torch.nan_to_num."
        )
