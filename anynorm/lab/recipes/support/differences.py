"""Estimates of the differences that claims are about, from the rows of a record, see `anynorm.lab.training.estimates`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from anynorm.lab.recipes.support.claims import POINTS, Claim, Scale
from anynorm.lab.recipes.support.quantities import Constant, Quantity
from anynorm.lab.recipes.support.sides import Sides
from anynorm.lab.training.estimates import (
    Estimate,
    estimate_paired,
    estimate_unpaired,
    image_variance,
    moderate,
    pairing_helps,
    pooled_correlation,
)
from anynorm.lab.training.sweep import Row


def estimate_differences(testable: Sequence[Sides], rows: Sequence[Row], num_test: int | None) -> list[Estimate]:
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
