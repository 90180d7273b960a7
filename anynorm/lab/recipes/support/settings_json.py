"""Settings as JSON, in records of recipes.

A dataclass is an object with its fields, a tuple an array. Of a `Config` and of the options of its task, only the values that
differ from their defaults are written.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any, Union, get_args, get_origin, get_type_hints

from anynorm.errors import DataError
from anynorm.lab.tasks import task_class
from anynorm.lab.training.config import Config, config_from_dict


def to_json(value: Any) -> Any:
    """Return settings as dictionaries, lists, strings and numbers."""
    if isinstance(value, Config):
        default = asdict(Config())
        options = task_class(value.task).options_of(value).changed()
        return {name: entry for name, entry in asdict(replace(value, options=options)).items() if entry != default[name]}
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_json(entry) for key, entry in value.items()}
    return [to_json(entry) for entry in value] if isinstance(value, list | tuple) else value


def from_json(kind: Any, value: Any) -> Any:
    """Return the value of a type from its JSON.

    Args:
        kind: the type, such as a class of settings, `tuple[int, ...]` or `Mapping[str, Config]`.
        value: the JSON that `to_json` returned.

    Raises:
        DataError: if the JSON does not have the fields of the type.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is None:
        return _plain_type_from_json(kind, value)
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not types.NoneType)
        return None if value is None else from_json(inner, value)
    if origin is tuple:
        return tuple(from_json(arguments[0], entry) for entry in value)
    return {key: from_json(arguments[1], entry) for key, entry in value.items()}  # a mapping


def _plain_type_from_json(kind: Any, value: Any) -> Any:
    if kind is Config:
        return config_from_dict(value)
    if is_dataclass(kind):
        return _dataclass_from_json(kind, value)
    return kind(*value) if hasattr(kind, "_fields") else value  # a named tuple; str, int, float or bool


def _dataclass_from_json(kind: Any, value: Any) -> Any:
    if not isinstance(value, dict):
        raise DataError(f"the JSON of {kind.__name__} must be an object; got {value!r}.")
    hints = get_type_hints(kind)
    if unknown := sorted(value.keys() - {each.name for each in fields(kind)}):
        raise DataError(f"{kind.__name__} has no field {', '.join(unknown)}.")
    try:
        return kind(**{name: from_json(hints[name], entry) for name, entry in value.items()})
    except TypeError as error:  # a field without a default is missing
        raise DataError(f"the JSON of {kind.__name__} lacks a field: {error}.") from None
