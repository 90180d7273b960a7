"""The claims of a recipe that `judge` tests."""

from collections.abc import Iterable

from anynorm.lab.recipes.support.claims import Check, Claim


def comparisons(claims: Iterable[Claim | Check]) -> list[Claim]:
    """Return claims without checks, which are true by a theorem."""
    return [claim for claim in claims if not isinstance(claim, Check)]
