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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from anynorm.lab.recipes.support.claims import POINTS, Check, Claim, Equivalent, Scale
from anynorm.lab.recipes.support.controls import Control
from anynorm.lab.recipes.support.quantities import Constant, Quantity
from anynorm.lab.recipes.support.sides import Sides, collect
from anynorm.lab.training.estimates import (
    LEVEL,
    MAX_SEEDS,
    Estimate,
    estimate_paired,
    estimate_unpaired,
    image_variance,
    moderate,
    pairing_helps,
    pooled_correlation,
)
from anynorm.lab.training.result import Result
from anynorm.lab.training.significance import holm
from anynorm.lab.training.sweep import Row

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
    """

    claim: Claim
    verdict: str
    note: str
    first: Result
    second: Result
    n: int
    estimate: Estimate | None = None
    p: float | None = None

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
    estimates = dict(zip(map(id, testable), _estimate(testable, rows, num_test), strict=True))
    decisions = _decide([(each.claim, estimates[id(each)]) for each in testable])
    by_side = dict(zip(map(id, testable), decisions, strict=True))
    level = LEVEL / max(1, len(testable))
    return [_verdict(each, estimates.get(id(each)), by_side.get(id(each)), level) for each in sides]


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


def _estimate(testable: Sequence[Sides], rows: Sequence[Row], num_test: int | None) -> list[Estimate]:
    """Return the estimates of the differences, with variances that claims in one unit share."""
    estimates: list[Estimate] = []
    pairs = [each.transformed() for each in testable]
    measured = [pair for each, pair in zip(testable, pairs, strict=True) if not _has_constant(each.claim)]
    correlation = pooled_correlation(measured) if len(measured) > 2 else 1.0
    for each, (first, second) in zip(testable, pairs, strict=True):
        paired = _has_constant(each.claim) or _share_cell(each.claim) or pairing_helps(correlation, len(first))
        estimate = estimate_paired(first, second) if paired else estimate_unpaired(first, second)
        estimates.append(replace(estimate, test_variance=_test_variance(each, rows, num_test)))
    units: dict[Scale, list[int]] = {}
    for index, each in enumerate(testable):
        units.setdefault(each.claim.scale, []).append(index)
    for indices in units.values():
        cells: list[Mapping[str, object]] = []
        for index in indices:
            cells += [cell for side in testable[index].claim.sides for cell in side.cells if cell not in cells]
        max_df = len(cells) * max(len(testable[index].seeds) - 1 for index in indices)
        for index, estimate in zip(indices, moderate([estimates[index] for index in indices], max_df), strict=True):
            estimates[index] = estimate
    return estimates


def _has_constant(claim: Claim) -> bool:
    return any(isinstance(side, Constant) for side in claim.sides)


def _share_cell(claim: Claim) -> bool:
    """Whether both sides read the same network."""
    first, second = claim.sides
    return any(cell in second.cells for cell in first.cells)


def _test_variance(sides: Sides, rows: Sequence[Row], num_test: int | None) -> float:
    """Return the variance of the difference that is due to the choice of the test items; 0 if the rows do not tell."""
    differences = []
    for seed, first, second in zip(sides.seeds, sides.first, sides.second, strict=True):
        items = [
            _on_scale(sides.claim, side, value, rows, seed)
            for side, value in zip(sides.claim.sides, (first, second), strict=True)
        ]
        known = [each for each in items if each is not None]
        if len(known) < 2 or len({len(each) for each in known} - {1}) > 1:
            return _binomial_limit(sides, rows, num_test)
        differences.append(known[0] - known[1])
    return image_variance(np.stack(differences))


def _on_scale(claim: Claim, side: Quantity, value: float | None, rows: Sequence[Row], seed: int) -> NDArray[np.float64] | None:
    """Return the values of the test items of a side on the scale of a claim, by the delta method; None if they are not known."""
    items = None if value is None else side.per_item(rows, seed)
    return None if items is None or value is None else claim.scale.derivative(value) * items


def _binomial_limit(sides: Sides, rows: Sequence[Row], num_test: int | None) -> float:
    """Return an upper limit of that variance for a difference of accuracies, if only the number of test images is known.

    Networks tend to err on the same images, which makes a sum of accuracies more variable and a difference less. So the terms of
    each sign are taken as fully correlated, and the two sums as independent.
    """
    if sides.claim.scale is not POINTS:
        return 0.0
    first, second = sides.claim.sides
    terms = (first - second).binomial_terms(rows, num_test) or []
    sums = [sum(max(0.0, sign * weight) * math.sqrt(variance) for weight, variance in terms) for sign in (1, -1)]
    return sums[0] ** 2 + sums[1] ** 2


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
    return Verdict(sides.claim, name, note, first, second, len(sides.seeds), estimate, p)


def _failed(sides: Sides) -> tuple[str, float | None, str]:
    """Return the verdict of a claim with failed runs: it holds only if the paper claims the failure, and all runs failed."""
    if sides.claim.loser_may_fail and None not in sides.first and set(sides.second) == {None}:
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
    hidden = replace(estimate, variance=0.0, df=1e6).smallest_difference > target
    return f"the choice of the test images alone hides {which}" if hidden else f"needs over {MAX_SEEDS} seeds for {which}"
