"""Which records measured a norm: the specs and layouts in their settings and rows."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from anynorm.errors import AnynormError
from anynorm.lab.recipes.support.catalog import read_header
from anynorm.lab.training.norm_layout import Layout
from anynorm.layers.registered import REGISTRY, RegisteredNorm
from anynorm.registry import parse
from tools.markdown import anchor, recipe_heading

RECORDS = Path(__file__).parent.parent / "records"
NUM_CLASSES = 10
"""What "@K" of a layout stands for where it is parsed."""


def example(norm: type[RegisteredNorm]) -> str:
    """Return the spec that stands for a norm."""
    return norm.example or norm.name


@lru_cache
def specs_of_records() -> dict[str, set[str]]:
    """Return the specs and layouts that the settings and rows of each record name, by the name of its file.

    A record that names none measured the norm of its recipe's name, if its title says so: `bgn_groups`, `sn_importance`.
    """
    named = {}
    for path in sorted(RECORDS.glob("*.jsonl")):
        recipe = path.name.split(".")[0]
        label = recipe.split("_")[0].upper()
        in_title = {label} if label in re.findall(r"\w+", read_header(recipe).title) else set()
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found = [_find_specs(lines[0]["settings"]), *(_find_specs(line["cell"]) for line in lines[1:])]
        named[path.name] = set().union(*found) or in_title
    return named


def _find_specs(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set().union(*(_find_specs(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(_find_specs(item) for item in value))
    return {value} if isinstance(value, str) and _is_spec(value) else set()


@lru_cache
def _is_spec(text: str) -> bool:
    """Whether a text is a spec or a layout of several, such as "sabn@K" or "xbn=gn:8;heads=gn:8"."""
    try:
        Layout.parse(text, batch_size=8, num_classes=NUM_CLASSES)
    except (AnynormError, ValueError):
        return False
    return True


@lru_cache
def names_of(text: str) -> frozenset[str]:
    """Return the names of the norms in a spec or layout, also of a norm that is written in another way.

    >>> sorted(names_of("sabn@K~gn:8")), sorted(names_of("bn.aux@2"))
    (['gn', 'sabn'], ['auxbn', 'bn'])
    """
    norms = Layout.parse(text, batch_size=8, num_classes=NUM_CLASSES).norms
    definitions = {norm.canonical() for norm in norms}
    written = {word for norm in norms for word in re.findall(r"[a-z]+", str(norm))} & set(REGISTRY)
    return frozenset(written | {name for name, norm in REGISTRY.items() if parse(example(norm)).canonical() in definitions})


def records(name: str) -> str:
    """Return a table of the records that measured a norm, alone or as a part of another."""
    lines = []
    for file, specs in specs_of_records().items():
        used = sorted(spec for spec in specs if name in names_of(spec))
        used = [spec for spec in used if spec.replace("@K", "").islower()] or used  # labels such as "BN" if there is no spec
        if used:
            recipe, preset = file.split(".")[:2]
            header = read_header(recipe)
            shown = ", ".join(f"`{spec}`" for spec in used[:6]) + (", …" if len(used) > 6 else "")
            link = f"[`{recipe}`](../records/index.md#{anchor(recipe_heading(recipe))}), {preset}"
            lines.append(f"| {header.source} | {header.title} | {shown} | {link} |")
    if not lines:
        return "No record has measured it."
    presets = "`desk` takes minutes on two cores, `night` hours; `paper` is the published setting ([Glossary](../glossary.md))."
    return "\n".join([presets, "", "| | measured | as | record |", "|---|---|---|---|", *lines])
