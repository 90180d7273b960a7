"""The records of all recipes with their verdicts, read once."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from anynorm.lab.recipes.support.catalog import load_recipe, recipe_names
from anynorm.lab.recipes.support.claims import Source
from anynorm.lab.recipes.support.recipe import SMOKE, Recipe
from anynorm.lab.recipes.support.record import SUFFIX, RecipeRecord
from anynorm.lab.recipes.support.verdicts import Verdict, count_groups

STRONGEST_FIRST = ("paper", "night", "evening", "desk")
"""Presets. A claim is counted once per recipe, in the first of these that has a record with a claim about the same place."""


class Judged(NamedTuple):
    """A recipe, one of its records, and the verdicts on its claims."""

    recipe: Recipe[Any]
    record: RecipeRecord[Any]
    verdicts: list[Verdict]


@lru_cache
def judged_records(folder: Path) -> list[Judged]:
    """Return all records of a folder with their verdicts, except those of smoke presets and pilots."""
    result = []
    for name in recipe_names():
        recipe = load_recipe(name)
        for preset in (preset for preset in recipe.presets if preset != SMOKE):
            if (path := folder / f"{name}.{preset}{SUFFIX}").exists():
                record = recipe.read(path)
                result.append(Judged(recipe, record, recipe.judge(record)))
    return result


def strongest_verdicts(folder: Path) -> dict[str, list[Verdict]]:
    """Return the verdicts that count, by recipe: those about a place of a paper in the strongest record with a claim about it."""
    result: dict[str, list[Verdict]] = {}
    places: dict[tuple[str, Source], str] = {}
    for recipe, record, verdicts in sorted(judged_records(folder), key=lambda each: STRONGEST_FIRST.index(each.record.preset)):
        for verdict in verdicts:
            place = (recipe.name, verdict.claim.source._replace(quote=""))
            if places.setdefault(place, record.preset) == record.preset:
                result.setdefault(recipe.name, []).append(verdict)
    return result


def split_counts(verdicts: list[Verdict]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the numbers of distinct claims by verdict: those of the papers, and ours."""
    papers = [verdict for verdict in verdicts if verdict.claim.source.paper]
    return count_groups(papers), count_groups([verdict for verdict in verdicts if not verdict.claim.source.paper])
