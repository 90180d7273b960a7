"""Types of settings: how the text of the command line and of stored runs becomes a value, and a value becomes text.

int      "8"             bool    "true" "yes" "1" "false" "no" "0"        tuple[float, ...]   "0.5,1,2"
float    "0.5" "8/255"   str     any text                                 int | None          as int
"""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

_FIELD_TYPES: WeakKeyDictionary[type, dict[str, Any]] = WeakKeyDictionary()
_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_DESCRIPTIONS = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
_PLURALS = {bool: "values true or false", int: "integers", float: "numbers", str: "texts"}


def field_types(owner: type) -> dict[str, Any]:
    """Return the type of each field of a dataclass by name, without `| None`."""
    if owner not in _FIELD_TYPES:
        _FIELD_TYPES[owner] = _read_types(owner)
    return _FIELD_TYPES[owner]


def _read_types(owner: type) -> dict[str, Any]:
    return {name: _without_none(kind) for name, kind in get_type_hints(owner).items()}


def _without_none(kind: Any) -> Any:
    if get_origin(kind) not in (types.UnionType, Union):
        return kind
    return next(each for each in get_args(kind) if each is not type(None))


def describe_type(kind: Any) -> str:
    """Return a type in words, for error messages.

    >>> describe_type(int), describe_type(tuple[float, ...])
    ('an integer', 'comma-separated numbers')
    """
    if get_origin(kind) is tuple:
        return f"comma-separated {_PLURALS[get_args(kind)[0]]}"
    return _DESCRIPTIONS.get(kind, f"a value of type {getattr(kind, '__name__', kind)}")


def parse_value(kind: Any, text: str) -> Any:
    """Return the value of a type that a text stands for.

    Raises:
        ValueError: if the text does not have the form of the type.

    >>> parse_value(tuple[float, ...], "0.5,1"), parse_value(float, "1/4"), parse_value(bool, "yes")
    ((0.5, 1.0), 0.25, True)
    """
    if get_origin(kind) is tuple:
        return tuple(parse_value(get_args(kind)[0], part.strip()) for part in text.split(",") if part.strip())
    if kind is bool:
        if text.lower() not in _BOOLS:
            raise ValueError(text)
        return _BOOLS[text.lower()]
    if kind is float:
        numerator, slash, denominator = text.partition("/")
        if slash and float(denominator) == 0:
            raise ValueError(text)
        return float(numerator) / float(denominator) if slash else float(text)
    return kind(text)


def convert_value(kind: Any, value: Any) -> Any:
    """Return a value of Python or of JSON as a value of a type: integers become floats, lists tuples, and texts are parsed.

    Raises:
        ValueError: if the value is not of the type.

    >>> convert_value(float, 1), convert_value(tuple[int, ...], [8, 16]), convert_value(tuple[int, ...], "8,16")
    (1.0, (8, 16), (8, 16))
    """
    if isinstance(value, str):
        return parse_value(kind, value)
    if get_origin(kind) is tuple:
        values = value if isinstance(value, tuple | list) else (value,)
        return tuple(convert_value(get_args(kind)[0], each) for each in values)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(value)
    return value


def plain_value(value: Any) -> Any:
    """Return a value as JSON stores it: tuples become comma-separated text, so that a run has one id however it was given.

    >>> plain_value((0.75, 1.0)), plain_value(("pgd:4", "fgsm")), plain_value(3)
    ('0.75,1', 'pgd:4,fgsm', 3)
    """
    if isinstance(value, tuple | list):
        return ",".join(format_value(each) for each in value)
    return value


def format_value(value: Any) -> str:
    """Return a value as text that `parse_value` reads.

    >>> format_value(True), format_value(1.0), format_value((8, 16)), format_value(1e-3)
    ('true', '1', '8,16', '0.001')
    """
    if isinstance(value, tuple | list):
        return ",".join(format_value(each) for each in value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)
