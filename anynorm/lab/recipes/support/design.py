"""The design of a measurement: what must not change once measuring has begun.

It consists of the settings, the claims with both sides, direction, δ, scale, level, group and requirements, and the controls with
their columns and thresholds. Words do not belong to it: the statement of a claim and the quote of its source may be corrected.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from typing import Any

from anynorm.lab.recipes.support.claims import Check, Claim
from anynorm.lab.recipes.support.controls import Control
from anynorm.lab.recipes.support.settings import Settings
from anynorm.lab.recipes.support.settings_json import to_json

WORDS = ("statement", "quote", "reason")
"""Fields of claims that are only words."""


def design_hash(settings: Settings, claims: Sequence[Claim | Check], controls: Sequence[Control]) -> str:
    """Return a hash of the design."""
    text = json.dumps([to_json(settings), describe(claims), describe(controls)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def describe(value: Any) -> Any:
    """Return claims, controls and quantities as lists, dictionaries, strings and numbers.

    A function is described by its name and by the values that it was made with.

    >>> from anynorm.lab.recipes.support.claims import Source
    >>> describe(Source("sn", "Table 2", "a quote"))
    ['Source', {'paper': 'sn', 'place': 'Table 2'}]
    """
    if is_dataclass(value) and not isinstance(value, type):
        return _describe_fields(value, [each.name for each in fields(value)])
    if hasattr(value, "_fields"):  # a named tuple
        return _describe_fields(value, value._fields)
    if isinstance(value, Mapping):
        return {str(key): describe(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [describe(entry) for entry in value]
    return _describe_function(value) if callable(value) else _describe_plain(value)


def _describe_function(function: Any) -> list[Any]:
    if isinstance(function, partial):
        return [describe(function.func), describe(function.args), describe(function.keywords)]
    closure = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
    return [getattr(function, "__qualname__", repr(function)), describe(closure)]


def _describe_plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return value if value is None or isinstance(value, str | int | float | bool) else repr(value)


def _describe_fields(value: Any, names: Sequence[str]) -> list[Any]:
    return [type(value).__name__, {name: describe(getattr(value, name)) for name in names if name not in WORDS}]


def differing_names(values: Mapping[str, Any], others: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the entries in which nested dictionaries differ, such as "training.config.lr"."""
    for name in sorted(values.keys() | others.keys()):
        value, other = values.get(name), others.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            yield from (f"{name}.{inner}" for inner in differing_names(value, other))
        elif value != other:
            yield name
