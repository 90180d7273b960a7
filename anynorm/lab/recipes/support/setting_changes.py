"""Settings of a recipe changed on the command line: `--set training.config.lr=0.03 --set norms=bn,gn:8 --set groups=auto`.

A path names fields of dataclasses and keys of mappings, as the header of a record has them. The text is read by the type of the
field: as in `anynorm.lab.training.value_types`, or by `from_text` of its class.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from anynorm.errors import DataError, unknown_name
from anynorm.lab.recipes.support.recipe import CHANGED, Recipe
from anynorm.lab.recipes.support.settings import SettingsT
from anynorm.lab.tasks import task_class
from anynorm.lab.training.config import Config
from anynorm.lab.training.value_types import describe_type, field_types, parse_value


def with_changes(recipe: Recipe[SettingsT], preset: str, changes: Sequence[str]) -> tuple[Recipe[SettingsT], str]:
    """Return a recipe with one more preset, which has changed settings, and the name of that preset.

    The name has a hash of the changes, so that the record of the changed settings is a file of its own.

    Args:
        recipe: the recipe.
        preset: the preset that is changed.
        changes: texts PATH=VALUE.

    Raises:
        DataError: if a path does not exist, or a text does not have the form of its type.
    """
    settings: Any = recipe.settings(preset)
    for change in changes:
        path, separator, text = change.partition("=")
        if not separator:
            raise DataError(f"--set must be PATH=VALUE, such as training.config.lr=0.03; got {change!r}.")
        settings = _change(settings, path.split("."), text, change)
    name = f"{preset}{CHANGED}{hashlib.sha256(' '.join(sorted(changes)).encode()).hexdigest()[:6]}"
    return replace(recipe, presets={**recipe.presets, name: settings}), name


def _change(value: Any, path: Sequence[str], text: str, change: str) -> Any:
    """Return settings with the value at a path replaced."""
    name, *rest = path
    if isinstance(value, Mapping):
        kind = type(next(iter(value.values()), 0.0))
        new = _change(_entry(value, name, change), rest, text, change) if rest else _parse(kind, text, change)
        return {**value, name: new}
    if not is_dataclass(value):
        raise DataError(f"--set {change}: {name!r} is not a part of {value!r}.")
    names = [each.name for each in fields(value)]
    if name not in names:
        raise DataError(f"--set {change}: {unknown_name('setting', name, names)}")
    entry = getattr(value, name)
    if isinstance(value, Config) and name == "options":
        entry = task_class(value.task).options_of(value)
    new = _change(entry, rest, text, change) if rest else _parse(field_types(type(value))[name], text, change)
    return replace(value, **{name: new})


def _entry(value: Mapping[str, Any], name: str, change: str) -> Any:
    if name not in value:
        raise DataError(f"--set {change}: {unknown_name('entry', name, value)}")
    return value[name]


def _parse(kind: Any, text: str, change: str) -> Any:
    if hasattr(kind, "from_text"):
        return kind.from_text(text)
    if is_dataclass(kind):
        names = " ".join(each.name for each in fields(kind))
        raise DataError(f"--set {change}: the setting has parts; name one of them after a dot: {names}.")
    try:
        return parse_value(kind, text)
    except (TypeError, ValueError):
        raise DataError(f"--set {change}: the value must be {describe_type(kind)}; got {text!r}.") from None
