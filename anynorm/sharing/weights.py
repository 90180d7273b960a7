"""The weights of a model in one safetensors file: parameters and buffers, each shared tensor once, in their own dtypes."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from anynorm.errors import DataError
from anynorm.io.atomic import atomic_write

FILE_NAME = "model.safetensors"


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a model by their names in its state_dict; not copies.

    Raises:
        DataError: if the state_dict has a value that safetensors cannot hold.
    """
    tensors = dict(model.state_dict(keep_vars=True))
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise DataError(f"{name!r} of the state_dict must be a tensor; got {type(tensor).__name__}, which cannot be saved.")
        if is_lazy(tensor):
            raise DataError(f"{name!r} has no shape before the first forward pass; run the model once.")
    return tensors


def find_tied(tensors: dict[str, Tensor]) -> dict[str, str]:
    """Return the names of tensors that are the same object as an earlier one, with the name of the earlier one.

    >>> weight = torch.ones(2)
    >>> find_tied({"embed": weight, "bias": torch.ones(2), "head": weight})
    {'head': 'embed'}
    """
    first: dict[int, str] = {}
    return {name: first[id(tensor)] for name, tensor in tensors.items() if first.setdefault(id(tensor), name) != name}


def check_storable(tensors: dict[str, Tensor]) -> None:
    """Check that tensors have values and a dense layout.

    Raises:
        DataError: if one has not.
    """
    for name, tensor in tensors.items():
        if tensor.is_meta:
            raise DataError(f"{name!r} is on the meta device, without values. Load weights before saving.")
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise DataError(
                f"{name!r} must be a dense tensor; got {'a quantized one' if tensor.is_quantized else tensor.layout}."
            )


def write_weights(tensors: dict[str, Tensor], folder: Path, *, replaces: Path) -> None:
    """Write tensors; those that share memory without being the same are written as independent copies.

    Args:
        tensors: the tensors by name.
        folder: the folder.
        replaces: a file that describes the old weights, which is removed as soon as the new ones are complete.

    Raises:
        DataError: if safetensors has no such dtype.
        DiskError: if the file cannot be written.
    """
    copies: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        copy = tensor.detach().cpu().contiguous()
        copies[name] = copy.clone() if copy.untyped_storage().data_ptr() in memory else copy
        memory.add(copy.untyped_storage().data_ptr())
    with atomic_write(folder / FILE_NAME) as temporary:
        try:
            save_file(copies, temporary, metadata={"format": "pt"})
        except SafetensorError as error:  # raised for a full disk, for example
            raise OSError(error) from None
        except (KeyError, ValueError) as error:  # a dtype that safetensors does not have
            raise DataError(f"safetensors cannot hold these tensors: {error}.") from None
        replaces.unlink(missing_ok=True)


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors by name, from the header of the file.

    Raises:
        DataError: if the file does not exist or is not a safetensors file.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        raise DataError(f"{path} does not exist. Expected a folder written by anynorm.save_pretrained.")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  # not a dict
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} must be a safetensors file: {error}.") from None


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return all tensors by name, on the CPU.

    Raises:
        DataError: if the file cannot be read.
    """
    try:
        return load_file(folder / FILE_NAME)
    except (SafetensorError, OSError, KeyError) as error:
        raise DataError(f"cannot read {folder / FILE_NAME}: {error}.") from None
