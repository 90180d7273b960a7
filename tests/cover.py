"""A small set of specs that has every ingredient of all specs, for tests that trace a layer and take seconds per spec."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest
from _pytest.mark import ParameterSet

import anynorm
from anynorm.core.cuts import Cut
from tests.helpers import CHANNELS, ROWS


def kind_of(parts: int) -> str:
    """Return how an axis is divided: not at all, into some parts, or into one part per index."""
    return {0: "all", 1: "one"}.get(parts, "parts")


def kind_of_cut(cut: Cut) -> str:
    """Return how a cut divides the samples, the channels and the positions."""
    samples = "ghost" if cut.is_ghost else kind_of(cut.samples)
    return f"{samples}/{kind_of(cut.channels)}/{kind_of(cut.space)}{' jointly' * cut.crosses_channels}"


def ingredients(spec: str) -> set[str]:
    """Return the ingredients of a norm: affine stages, domains; in the algebra cuts and mixing, outside of it the module."""
    norm = anynorm.make(spec, CHANNELS)
    norm_spec = norm.norm_spec
    stages = [type(stage).__name__ for stage in norm_spec.affine.stages] or ["no affine"]
    found = {*stages, *(["sandwich"] if len(stages) > 1 else []), *(["domains"] if norm_spec.affine.num_domains else [])}
    if norm_spec.custom is not None:
        return found | {type(norm).__module__}
    found |= {kind_of_cut(cut) for cut in norm.cuts}
    if norm_spec.mean != norm_spec.var:
        found.add("different cuts of mean and variance" if norm_spec.mean else "mean of 0")
    if max(len(norm_spec.mean), len(norm_spec.var)) > 1:
        found |= {type(norm_spec.mixing).__name__, f"mixing weights per {kind_of(norm_spec.mixing.groups)} of channels"}
    return found


def cover(specs: list[str]) -> list[str]:
    """Return specs that together have every ingredient: repeatedly the first one with the most ingredients not yet covered."""
    found = {spec: ingredients(spec) for spec in specs}
    missing, chosen = set().union(*found.values()), []
    while missing:
        chosen.append(max(specs, key=lambda spec: len(found[spec] & missing)))
        missing -= found[chosen[-1]]
    return chosen


COVER = cover(ROWS)


def thorough_except(chosen: Collection[str], values: Iterable[str]) -> list[ParameterSet]:
    """Return parameters of a test; those not chosen run in `make test-all` only."""
    return [pytest.param(value, marks=() if value in chosen else pytest.mark.thorough) for value in values]


covering = pytest.mark.parametrize("spec", thorough_except(COVER, ROWS))
"""All specs; those outside the cover run in `make test-all` only."""
