"""Loading of models by name, `package.module:factory`, and of checkpoints: .safetensors files and torch files."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from anynorm.errors import DataError
from anynorm.io.atomic import atomic_write


def import_object(name: str) -> Any:
    """Import the object named by `package.module:attribute`.

    Raises:
        DataError: if the name does not have this form, or the import fails.

    >>> import_object("torch.nn:Identity").__name__
    'Identity'
    """
    module_name, _, attribute = name.partition(":")
    if not attribute:
        raise DataError(f"expected package.module:factory; got {name!r}.")
    try:
        imported: Any = import_module(module_name)
        for part in attribute.split("."):
            imported = getattr(imported, part)
    except (ImportError, AttributeError) as error:
        raise DataError(
            f"cannot import {name!r}: {error}. Expected package.module:NAME, importable from this folder or PYTHONPATH."
        ) from None
    return imported


def call_factory(name: str) -> Any:
    """Import the function named by `package.module:factory` and return the result of calling it without arguments.

    Raises:
        DataError: if the function cannot be imported, or cannot be called without arguments.
    """
    factory = import_object(name)
    check_callable(factory, name, {})
    return factory()


def check_callable(factory: Any, name: str, keywords: Mapping[str, Any]) -> None:
    """Check that a factory can be called with the given keyword arguments.

    Raises:
        DataError: if the factory is not callable or requires other arguments.
    """
    try:
        inspect.signature(factory).bind(**keywords)
    except ValueError:  # builtins have no signature and cannot be checked
        return
    except TypeError as error:
        accepted = f"with {', '.join(keywords)} alone" if keywords else "without arguments"
        raise DataError(f"{name!r} must be a factory that can be called {accepted}: {error}.") from None


def call_with_known(name: str, factory: Any, keywords: Mapping[str, Any]) -> Any:
    """Call a factory with those of the keyword arguments that its signature has, and return the result.

    Raises:
        DataError: if the factory is not callable or requires other arguments.
    """
    if not callable(factory):
        raise DataError(f"{name!r} must be a factory; got {type(factory).__name__}.")
    parameters = inspect.signature(factory).parameters
    known = {key: value for key, value in keywords.items() if key in parameters}
    check_callable(factory, name, known)
    return factory(**known)


def load_model(name: str, checkpoint: Path | None = None) -> nn.Module:
    """Build the model named by `package.module:factory` and, if given, load a checkpoint into it.

    Raises:
        DataError: if the factory cannot be imported or does not return an nn.Module, or the checkpoint does not fit.
    """
    model = call_factory(name)
    if not isinstance(model, nn.Module):
        raise DataError(f"{name!r} must return an nn.Module; got {type(model).__name__}.")
    if checkpoint is not None:
        try:
            model.load_state_dict(read_state_dict(checkpoint))
        except RuntimeError as error:
            raise DataError(f"{checkpoint} does not fit {name}: {error}") from None
    return model


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a state_dict from a .safetensors or torch file.

    A state_dict stored under the key 'state_dict' or 'model' is unwrapped, and the prefix 'module.' (DataParallel) is removed.

    Raises:
        DataError: if the file does not exist, cannot be read, or does not contain a state_dict.
    """
    if not path.exists():
        raise DataError(f"checkpoint not found: {path}.")
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and safetensors raise many types for a file of another format
        raise DataError(f"cannot read {path}: {type(error).__name__}: {error}.") from None
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict):
        raise DataError(f"{path} must hold a state_dict; got {type(content).__name__}.")
    return {key.removeprefix("module."): value for key, value in content.items()}


def save_model(model: nn.Module, path: Path) -> None:
    """Write the state_dict of a model as safetensors. Tensors that share memory are written as independent copies.

    Raises:
        DataError: if the path does not end in .safetensors.
        DiskError: if the file cannot be written; an existing file is then unchanged.
    """
    if path.suffix != ".safetensors":
        raise DataError(f"checkpoints are written as safetensors: the path must end in .safetensors; got {path}.")
    tensors = {key: value.detach().clone().contiguous() for key, value in model.state_dict().items()}
    with atomic_write(path) as temporary:
        try:
            save_file(tensors, temporary)
        except SafetensorError as error:  # raised for a full disk, for example
            raise OSError(error) from None
