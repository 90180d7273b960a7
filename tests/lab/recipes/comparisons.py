"""The claims of a recipe that `judge` tests."""

from collections.abc import Iterable
from random import Random

from anynorm.lab.recipes.support.claims import Check, Claim


def comparisons(claims: Iterable[Claim | Check]) -> list[Claim]:
    """Return claims without checks, which are true by a theorem."""
    return [claim for claim in claims if not isinstance(claim, Check)]


def noise(cell: object, sd: float = 0.01) -> float:
    """Return a small number that depends on the whole cell, so that the differences of seeds have a spread."""
    return Random(str(cell)).gauss(0, sd)
