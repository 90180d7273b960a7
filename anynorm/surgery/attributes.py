"""Attributes on which the forward of a block depends: recorded while it is traced, compared at each call.

Only values that can be compared at once, and that are equal after a copy of the model, are recorded: numbers, strings, functions,
dtypes and the like, and lists, tuples and dictionaries of them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import nn

from anynorm.errors import SurgeryError

_NUMBERS: tuple[type, ...] = (bool, int, float, complex, str, bytes, type(None), enum.Enum)
_ATOMS = (*_NUMBERS, type, FunctionType, BuiltinFunctionType, torch.dtype, torch.device, torch.memory_format)
_MODULE_INTERNALS = {*vars(nn.Module()), "__class__", "__dict__"}
MISSING: Any = object()


class UnrecordableError(SurgeryError):
    """Raised for an attribute whose changes cannot be noticed; the message is the reason."""


def is_plain(value: Any) -> bool:
    """Whether a value can be recorded."""
    if isinstance(value, tuple | list):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(item) for key, item in value.items())
    return isinstance(value, _ATOMS)


def snapshot(value: Any) -> Any:
    """Return a value that does not change if a container in it is changed."""
    if type(value) is list:
        return [snapshot(item) for item in value]
    if type(value) is dict:
        return {key: snapshot(item) for key, item in value.items()}
    return tuple([snapshot(item) for item in value]) if type(value) is tuple else value


def equals(value: Any, recorded: Any) -> bool:
    """Whether an attribute has the value that was recorded; values of another type, such as tensors, are not compared."""
    if value is recorded:
        return True
    if type(value) is not type(recorded):
        return False
    if isinstance(value, tuple | list):
        return len(value) == len(recorded) and all(map(equals, value, recorded))
    if isinstance(value, dict):
        return value.keys() == recorded.keys() and all([equals(item, recorded[key]) for key, item in value.items()])
    return isinstance(value, _ATOMS) and bool(value == recorded)


def read(module: nn.Module, name: str) -> Any:
    """Return an attribute, child, parameter or buffer of a module; MISSING if there is none of this name."""
    state = module.__dict__
    for values in (state, state["_modules"], state["_parameters"], state["_buffers"]):
        if name in values:
            return values[name]
    return MISSING


@contextmanager
def recorded_attributes(block: nn.Module, attributes: dict[tuple[str, str], Any]) -> Iterator[None]:
    """Record the attributes of a block and of its descendants that are read in a `with` block, by path of the module and name.

    Raises:
        UnrecordableError: when an attribute is read that cannot be recorded.
    """
    paths = {id(module): path for path, module in block.named_modules()}

    def read_attribute(module: nn.Module, name: str) -> Any:
        state = object.__getattribute__(module, "__dict__")
        if name not in _MODULE_INTERNALS and id(module) in paths:
            if name in state and not is_plain(state[name]):
                kind = type(state[name]).__name__
                raise UnrecordableError(f"its forward reads the attribute {name} ({kind}), whose changes cannot be noticed")
            is_optional = any(
                name in state[kind] and state[kind][name] is None for kind in ("_modules", "_parameters", "_buffers")
            )
            if name in state or is_optional:
                attributes[paths[id(module)], name] = snapshot(state.get(name))
        return object.__getattribute__(module, name)

    nn.Module.__getattribute__ = read_attribute  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del nn.Module.__getattribute__
