"""The file `norms.json` of a saved model: its norms by path, and what is needed to read its weights.

    {"format": "anynorm", "version": 1, "anynorm": "0.3.0", "base": "torchvision.models:resnet18",
     "norms": [{"paths": ["bn1"], "spec": "gn:8", "num_features": 64, …}], "fused_blocks": [],
     "tied": {"head.weight": "embed.weight"}, "dtypes": {}}

Every value is checked when the file is read; a file may come from anyone. It names no other file and no code: `base` is
information for people.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from anynorm.core.activation import MODULES
from anynorm.errors import DataError
from anynorm.io.atomic import atomic_write
from anynorm.sharing.norm_config import UPDATE_RULES, NormConfig

FORMAT, VERSION = "anynorm", 1
FILE_NAME = "norms.json"
MAX_BYTES = 16 * 2**20
"""Largest size of the file; a network with ten thousand norms has a file of about 4 MB."""
MAX_TEXT = 1000
"""Largest number of characters of a text."""
MAX_INT, MAX_FLOAT = 2**31 - 1, 1e30
"""Largest numbers; no option needs larger ones, and float32 has them."""
DTYPES = ("bfloat16", "float16", "float32", "float64")


@dataclass(frozen=True)
class ModelConfig:
    """The norms of a model, and what else the file says.

    Args:
        norms: the anynorm layers of the model, in the order of its modules.
        base: name of the base model, for people; "" if none was given.
        fused_blocks: paths of the blocks whose activations were fused by `anynorm.fuse`.
        tied: for each tensor that is not stored, because it is another tensor of the model, the name of that tensor.
        dtypes: names of the dtypes of floating-point buffers that are not part of the state_dict.
        anynorm_version: the version of anynorm that wrote the file.
    """

    norms: tuple[NormConfig, ...]
    base: str
    fused_blocks: tuple[str, ...]
    tied: dict[str, str]
    dtypes: dict[str, str]
    anynorm_version: str


def write_config(config: ModelConfig, folder: Path) -> None:
    """Write `norms.json`.

    Raises:
        DiskError: if the file cannot be written.
    """
    content = {"format": FORMAT, "version": VERSION, "anynorm": config.anynorm_version, "base": config.base}
    content |= {"norms": [asdict(norm) for norm in config.norms], "fused_blocks": config.fused_blocks}
    content |= {"tied": config.tied, "dtypes": config.dtypes}
    with atomic_write(folder / FILE_NAME) as temporary:
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def read_config_file(folder: Path) -> ModelConfig:
    """Read `norms.json` and check every value.

    Raises:
        DataError: if the file does not exist, is not of this format, was written by a newer version, or has invalid values.
    """
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}. Expected a folder written by anynorm.save_pretrained.") from None
    if len(raw) > MAX_BYTES:
        raise DataError(f"{path} must have at most {MAX_BYTES // 2**20} MB; it has more.")
    try:
        content = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # a number with thousands of digits is a ValueError too
        raise DataError(f"{path} must be JSON; it cannot be parsed ({type(error).__name__}).") from None
    return check_config(content, str(path))


def _no_constant(name: str) -> None:
    raise ValueError(name)


def check_config(content: Any, source: str) -> ModelConfig:
    """Return the config of a JSON value.

    Raises:
        DataError: if a value is missing, unknown or invalid; the message starts with `source`.
    """
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f"{source} must be a JSON object with the format {FORMAT!r}, as anynorm.save_pretrained writes it.")
    version, writer = content.get("version"), content.get("anynorm")
    if type(version) is int and version > VERSION:
        written = f" (anynorm {writer})" if isinstance(writer, str) and len(writer) < 40 else ""
        raise DataError(
            f"{source} has the version {version if version <= MAX_INT else 'above 2³¹'} of the format, written by a newer "
            f"anynorm{written}; this one reads versions up to {VERSION}. Upgrade anynorm."
        )
    values = _Values(content, source)
    values.check({"format", "version", "anynorm", "base", "norms", "fused_blocks", "tied", "dtypes"})
    if version != VERSION or type(version) is not int:
        raise values.error("version", f"must be {VERSION}")
    norms = values.read("norms", _is_list, "a list")
    return ModelConfig(
        norms=tuple(_read_norm(norm, f"{source}: norm {index}") for index, norm in enumerate(norms)),
        base=values.read("base", _is_text, "a text"),
        fused_blocks=tuple(values.read("fused_blocks", _is_texts, "a list of texts")),
        tied=values.read("tied", _is_text_by_text, "an object with texts"),
        dtypes=values.read("dtypes", _is_dtypes, f"an object with values among {' '.join(DTYPES)}"),
        anynorm_version=values.read("anynorm", _is_text, "a text"),
    )


def _is_text(value: Any) -> bool:
    return type(value) is str and len(value) <= MAX_TEXT


def _is_list(value: Any) -> bool:
    return type(value) is list


def _is_texts(value: Any) -> bool:
    return type(value) is list and all(map(_is_text, value))


def _is_text_by_text(value: Any) -> bool:
    return type(value) is dict and all(map(_is_text, [*value, *value.values()]))


def _is_dtypes(value: Any) -> bool:
    return _is_text_by_text(value) and all(name in DTYPES for name in value.values())


def _is_number(value: Any) -> bool:
    if type(value) is int:
        return abs(value) <= MAX_INT
    return type(value) is float and abs(value) <= MAX_FLOAT  # False for NaN


def _is_numbers(value: Any) -> bool:
    return type(value) is dict and all(map(_is_text, value)) and all(map(_is_number, value.values()))


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_int(value: Any) -> bool:
    return type(value) is int and abs(value) <= MAX_INT


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "paths": (lambda value: _is_texts(value) and len(value) > 0, "a list with at least one text"),
    "spec": (_is_text, f"a text of at most {MAX_TEXT} characters"),
    "num_features": (lambda value: _is_int(value) and value > 0, "an integer of at least 1"),
    "affine": (_is_bool, "true or false"),
    "bias": (_is_bool, "true or false"),
    "eps": (_is_number, "a finite number"),
    "update_rule": (lambda value: _is_text(value) and value in UPDATE_RULES, f"one of {' '.join(UPDATE_RULES)}"),
    "momentum": (_or_none(_is_number), "a finite number or null"),
    "track_running_stats": (_is_bool, "true or false"),
    "activation": (_or_none(lambda value: _is_text(value) and value in MODULES), f"null or one of {' '.join(MODULES)}"),
    "negative_slope": (_or_none(_is_number), "a finite number or null"),
    "single_value": (_is_text, "a text"),
    "channel_axis": (_is_int, "an integer"),
    "schedule_enabled": (_is_bool, "true or false"),
    "hyperparameters": (_is_numbers, "an object with finite numbers"),
    "post_modules": (_is_texts, "a list of texts"),
}
"""For each field of a norm, the check of its type and what it must be; `anynorm.make` checks the values."""


class _Values:
    """The values of a JSON object, which are read with checks."""

    def __init__(self, content: Mapping[str, Any], source: str) -> None:
        self.content, self.source = content, source

    def check(self, names: set[str]) -> None:
        """Raise DataError if names are missing or unknown."""
        missing, unknown = sorted(names - {*self.content}), sorted({*self.content} - names)
        if missing:
            raise DataError(f"{self.source} lacks {' '.join(missing)}.")
        if unknown:
            raise DataError(f"{self.source} has the unknown key {unknown[0][:40]!r}. Known: {' '.join(sorted(names))}.")

    def read(self, name: str, check: Callable[[Any], bool], expected: str) -> Any:
        """Return a value.

        Raises:
            DataError: if the check fails.
        """
        if not check(self.content[name]):
            raise self.error(name, f"must be {expected}")
        return self.content[name]

    def error(self, name: str, expected: str) -> DataError:
        """Return the error of a value, which is not shown in full: it may be long."""
        value = self.content[name]
        shown = repr(value) if value is None or type(value) in (bool, float) else f"a value of type {type(value).__name__}"
        if type(value) is str or _is_int(value):
            shown = repr(value)[:60]
        return DataError(f"{self.source}: {name} {expected}; got {shown}.")


def _read_norm(content: Any, source: str) -> NormConfig:
    if type(content) is not dict:
        raise DataError(f"{source} must be a JSON object; got {type(content).__name__}.")
    values = _Values(content, source)
    values.check({field.name for field in fields(NormConfig)})
    read = {name: values.read(name, check, expected) for name, (check, expected) in FIELDS.items()}
    if (read["update_rule"] == "running") != (read["momentum"] is not None):
        raise DataError(f"{source}: momentum must be a number for the update rule running, and null for all others.")
    return NormConfig(**read | {name: tuple(read[name]) for name in ("paths", "post_modules")})
