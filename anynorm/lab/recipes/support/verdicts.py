"""Verdicts on the claims of a recipe.

A verdict is an estimate: the difference with its 95 % interval, the number of seeds n, the paper's difference and the smallest
difference that n seeds find with a power of 80 %. Its name follows from three tests at the level 5 %, each with Holm's correction
over all claims of the recipe that can be tested:

    holds                     the difference is not 0 and has the claimed sign; of an equivalence: it is within ± δ
    reversed                  the difference is not 0 and has the other sign; of an equivalence: it is beyond ± δ
    equivalent                the difference is within ± δ
    smaller than published    the difference is not the paper's, but may be 0
    undecided                 none of these; with the number of seeds that would find the paper's difference
    not a fair test           a control fails: a network did not learn, or an effect that must be there is not
    failed                    a run diverged or could not be trained
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from anynorm.lab.recipes.support.claims import Check, Claim, Equivalent
from anynorm.lab.recipes.support.controls import Control
from anynorm.lab.recipes.support.differences import estimate_differences
from anynorm.lab.recipes.support.sides import Sides, collect
from anynorm.lab.training.estimates import LEVEL, MAX_SEEDS, Estimate
from anynorm.lab.training.result import Result
from anynorm.lab.training.significance import holm
from anynorm.lab.training.sweep import Cell, Row

HOLDS, REVERSED, EQUIVALENT, SMALLER = "holds", "reversed", "equivalent", "smaller than published"
UNDECIDED, NOT_FAIR, FAILED = "undecided", "not a fair test", "failed"
VERDICTS = (HOLDS, REVERSED, EQUIVALENT, SMALLER, UNDECIDED, NOT_FAIR, FAILED)
DECIDED = (HOLDS, REVERSED, EQUIVALENT, SMALLER)
LEAST_FAVOURABLE = (NOT_FAIR, FAILED, REVERSED, UNDECIDED, SMALLER, EQUIVALENT, HOLDS)
"""The verdict of a group of claims is the first of these that one of its claims has."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim.

    Attributes:
        claim: the claim.
        verdict: one of `VERDICTS`.
        note: a reason, or a comparison with the paper's number.
        first: the result of the first side, over seeds.
        second: the result of the second side.
        n: number of seeds.
        estimate: the difference, on the scale of the claim; None if it could not be estimated.
        p: p-value of the test that decided, with Holm's correction; None if none was made.
        level: level of the first step of Holm's correction, for which powers are stated.
        exploratory: whether claims or controls were changed after measuring began.
    """

    claim: Claim
    verdict: str
    note: str
    first: Result
    second: Result
    n: int
    estimate: Estimate | None = None
    p: float | None = None
    level: float = LEVEL
    exploratory: bool = False

    @property
    def decided(self) -> bool:
        """Whether the claim was decided."""
        return self.verdict in DECIDED


def judge(claims: Sequence[Claim], controls: Sequence[Control], rows: Sequence[Row], num_test: int | None) -> list[Verdict]:
    """Return the verdict on each claim of a recipe.

    Args:
        claims: the claims; they are corrected for multiple tests together.
        controls: what must be right before a claim is tested.
        rows: the rows of the record.
        num_test: number of test images of accuracies whose rows do not say which images were right; None if it is unknown.

    Raises:
        DataError: if a claim requires an unknown control, or a quantity is not in the rows.
    """
    sides = [collect(claim, controls, rows) for claim in claims]
    testable = [each for each in sides if each.testable]
    estimates = dict(zip(map(id, testable), estimate_differences(testable, rows, num_test), strict=True))
    decisions = _decide([(each.claim, estimates[id(each)]) for each in testable])
    shown = [each for each in sides if each.unfair and not each.failed and len(each.seeds) > 1]
    estimates |= dict(zip(map(id, shown), estimate_differences(shown, rows, num_test), strict=True))
    by_side = dict(zip(map(id, testable), decisions, strict=True))
    level = LEVEL / max(1, len(testable))
    return [_verdict(each, estimates.get(id(each)), by_side.get(id(each)), level) for each in sides]


def until_complete(verdicts: Sequence[Verdict], rows: Sequence[Row], cells: Sequence[Cell]) -> list[Verdict]:
    """Return verdicts in which a claim is undecided as long as seeds of the design are missing.

    Looking after each seed and stopping at a decision would find differences by chance: in 17 % of 8 seeds instead of 5 %.

    Args:
        verdicts: the verdicts on the rows.
        rows: the rows of the record.
        cells: all cells of the design.
    """
    result = []
    for verdict in verdicts:
        seeds = [(side.seeds(cells) or set(), side.seeds(rows) or set()) for side in verdict.claim.sides]
        num_seeds = max(len(designed) for designed, _ in seeds)
        if verdict.verdict not in (NOT_FAIR, FAILED) and any(designed - measured for designed, measured in seeds):
            note = f"{verdict.n} of {num_seeds} seeds are measured"
            result.append(replace(verdict, verdict=UNDECIDED, note=note, p=None))
        else:
            result.append(verdict)
    return result


def violated(checks: Sequence[Check], rows: Sequence[Row]) -> list[Check]:
    """Return the checks that are violated for a seed, beyond rounding."""
    result = []
    for check in checks:
        seeds = sorted((check.larger - check.smaller).seeds(rows) or ())
        pairs = [(check.larger.at(rows, seed), check.smaller.at(rows, seed)) for seed in seeds]
        if any(a is not None and b is not None and a < b - 1e-6 * abs(b) for a, b in pairs):
            result.append(check)
    return result


def count_groups(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Return the number of distinct claims by verdict: claims of one group count once, with their least favourable verdict."""
    groups: dict[str, list[str]] = {}
    for number, verdict in enumerate(verdicts):
        groups.setdefault(verdict.claim.group or f"claim {number}", []).append(verdict.verdict)
    counted = [min(group, key=LEAST_FAVOURABLE.index) for group in groups.values()]
    return {name: counted.count(name) for name in VERDICTS}


def _decide(estimates: Sequence[tuple[Claim, Estimate]]) -> list[tuple[str, float | None]]:
    """Return the verdict and the corrected p-value of each claim, from three families of tests."""
    decided: dict[int, tuple[str, float | None]] = {}

    def test(p_value: Callable[[Claim, Estimate], float | None], name: Callable[[Claim, Estimate], str]) -> None:
        # over all claims, also those that are decided: a family must not depend on the data
        p_values = {index: p for index, pair in enumerate(estimates) if (p := p_value(*pair)) is not None}
        for index, p in holm(p_values).items():
            if p < LEVEL and index not in decided:
                decided[index] = (name(*estimates[index]), p)

    def p_claimed(claim: Claim, estimate: Estimate) -> float:
        return estimate.p_equivalent(claim.transformed_delta) if isinstance(claim, Equivalent) else estimate.p_different()

    def p_opposite(claim: Claim, estimate: Estimate) -> float | None:
        delta = claim.transformed_delta
        if isinstance(claim, Equivalent):
            return estimate.p_beyond(claim.transformed_delta)
        return None if delta is None else estimate.p_equivalent(delta)

    def p_published(claim: Claim, estimate: Estimate) -> float | None:
        if isinstance(claim, Equivalent) or claim.margin is None:
            return None
        return estimate.p_different(claim.margin) if estimate.difference < claim.margin else 1.0

    test(p_claimed, lambda claim, each: HOLDS if isinstance(claim, Equivalent) or each.difference > 0 else REVERSED)
    test(p_opposite, lambda claim, _: REVERSED if isinstance(claim, Equivalent) else EQUIVALENT)
    test(p_published, lambda *_: SMALLER)
    return [decided.get(index, (UNDECIDED, None)) for index in range(len(estimates))]


def _verdict(sides: Sides, estimate: Estimate | None, decision: tuple[str, float | None] | None, level: float) -> Verdict:
    if sides.unfair:
        name, p, note = NOT_FAIR, None, sides.unfair
    elif sides.failed:
        name, p, note = _failed(sides)
    elif estimate is None or decision is None:
        name, p, note = UNDECIDED, None, f"needs at least 2 seeds; got {len(sides.seeds)}"
    else:
        (name, p), note = decision, _note(sides.claim, estimate, decision[0], level)
    if sides.num_left_out:
        left_out = f"{sides.num_left_out} seeds left out: their two sides come from different code or processors"
        note = f"{note}; {left_out}" if note else left_out
    first, second = Result.of(sides.first), Result.of(sides.second)
    return Verdict(sides.claim, name, note, first, second, len(sides.seeds), estimate, p, level)


def _failed(sides: Sides) -> tuple[str, float | None, str]:
    """Return the verdict of a claim with failed runs: it holds only if the paper claims the failure, and all runs failed."""
    all_failed = len(sides.seeds) > 1 and None not in sides.first and set(sides.second) == {None}
    if sides.claim.loser_may_fail and all_failed:
        return HOLDS, None, f"all {len(sides.seeds)} runs of the smaller side failed"
    count = sum(value is None for side in (sides.first, sides.second) for value in side)
    return FAILED, None, f"{count} of {2 * len(sides.seeds)} runs failed"


def _note(claim: Claim, estimate: Estimate, name: str, level: float) -> str:
    """Return the comparison with the paper's number, or the number of seeds that a decision needs at a level."""
    margin = claim.margin
    low, high = estimate.interval()
    if name == HOLDS and not isinstance(claim, Equivalent) and margin is not None and not low <= margin <= high:
        return "larger than published" if low > margin else "smaller than published"
    if name != UNDECIDED:
        return ""
    if not estimate.standard_error:
        return f"all {estimate.n} seeds have the same difference; the sign test needs {math.ceil(1 - math.log2(level))} seeds"
    if isinstance(claim, Equivalent):
        target, which = claim.transformed_delta, "a difference of δ"
    elif margin is not None and margin >= abs(estimate.difference):
        target, which = margin, "the paper's difference"
    else:
        target, which = abs(estimate.difference), "a difference of this size"
    if needed := estimate.seeds_needed(target, level):
        return f"needs about {needed} seeds for {which}"
    hidden = replace(estimate, variance=0.0, df=1e6).smallest_difference() > target
    return f"the choice of the test images alone hides {which}" if hidden else f"needs over {MAX_SEEDS} seeds for {which}"
