"""Models named on a command line: `package.module:factory`, and checkpoints."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.errors import DataError


def import_object(text: str) -> Any:
    """Fetch what `package.module:factory` names; the current directory is looked in too.

    >>> import_object("torch.nn:Identity").__name__
    'Identity'
    """
    name, colon, attribute = text.partition(":")
    if not colon or not attribute:
        raise DataError(f"{text!r} names nothing to call; write package.module:factory.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = import_module(name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise DataError(f"{text!r} cannot be fetched: {error}.") from None
    return found


def call_factory(text: str) -> Any:
    """Call what `package.module:factory` names, without arguments."""
    return import_object(text)()


def load_model(text: str, checkpoint: Path | None = None) -> nn.Module:
    """Make the model that a text names, and load a checkpoint into it."""
    model = call_factory(text)
    if not isinstance(model, nn.Module):
        raise DataError(f"{text!r} gave a {type(model).__name__}, not an nn.Module.")
    if checkpoint is not None:
        try:
            model.load_state_dict(read_state_dict(checkpoint))
        except RuntimeError as error:
            raise DataError(f"{checkpoint} does not fit {text}: {error}") from None
    return model


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a state_dict from a .safetensors or a torch file; one inside 'state_dict' or 'model' is found."""
    if not path.exists():
        raise DataError(f"There is no file {path}.")
    try:
        safe = path.suffix == ".safetensors"
        found = dict(_safetensors().load_file(path)) if safe else torch.load(path, map_location="cpu", weights_only=True)
    except DataError:
        raise
    except Exception as error:  # whatever torch and safetensors raise about a file that is none of theirs
        raise DataError(f"{path} cannot be read: {type(error).__name__}: {error}.") from None
    for key in ("state_dict", "model"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict):
        raise DataError(f"{path} holds a {type(found).__name__}, not a state_dict.")
    return {key.removeprefix("module."): value for key, value in found.items()}


def _safetensors() -> Any:
    try:
        return import_module("safetensors.torch")
    except ImportError:
        raise DataError("Checkpoints of this kind need the package safetensors: pip install safetensors.") from None


def save_model(model: nn.Module, path: Path) -> None:
    """Write a model's state_dict as safetensors; tensors that share memory are written once each."""
    _safetensors().save_file({key: value.detach().clone().contiguous() for key, value in model.state_dict().items()}, path)
