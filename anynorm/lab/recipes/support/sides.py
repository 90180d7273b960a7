"""The two sides of a claim: its values seed by seed, and what forbids a test."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anynorm.errors import DataError
from anynorm.lab.recipes.support.claims import Claim
from anynorm.lab.recipes.support.controls import Control, ControlResult, Learned, Requirement
from anynorm.lab.recipes.support.quantities import Quantity
from anynorm.lab.training.sweep import Row


@dataclass(frozen=True)
class Sides:
    """The values of a claim, seed by seed, and what forbids a test.

    Attributes:
        claim: the claim.
        seeds: the seeds that both sides have.
        first: the values of the first side, None where a run failed.
        second: the values of the second side.
        num_left_out: number of seeds whose two sides come from different code or processors.
        unfair: which controls fail; "" if none.
    """

    claim: Claim
    seeds: tuple[int, ...]
    first: tuple[float | None, ...]
    second: tuple[float | None, ...]
    num_left_out: int
    unfair: str

    @property
    def failed(self) -> bool:
        """Whether a run failed."""
        return None in self.first or None in self.second

    @property
    def testable(self) -> bool:
        """Whether the difference can be estimated."""
        return not self.unfair and not self.failed and len(self.seeds) > 1

    def transformed(self) -> tuple[list[float], list[float]]:
        """Return the values on the scale of the claim.

        Raises:
            DataError: if a ratio is asked of a number that is not positive.
        """
        try:
            first, second = ([self.claim.scale.transform(value or 0.0) for value in side] for side in (self.first, self.second))
        except ValueError:
            raise DataError(f"the claim {self.claim.statement!r} is about a ratio, which needs numbers above 0.") from None
        return first, second


def check_controls(claims: Sequence[Claim], controls: Sequence[Control], rows: Sequence[Row]) -> list[ControlResult]:
    """Return the outcome of each control, for each cell that a claim reads."""
    cells = []
    for claim in claims:
        for side in claim.sides:
            cells += [cell for cell in side.cells if cell not in cells]
    learned = [control for control in controls if isinstance(control, Learned)]
    results = [result for control in learned for cell in cells if (result := control.check(rows, cell)) is not None]
    return results + [control.check(rows) for control in controls if isinstance(control, Requirement)]


def collect(claim: Claim, controls: Sequence[Control], rows: Sequence[Row]) -> Sides:
    """Return the two sides of a claim.

    Raises:
        DataError: if the claim requires an unknown control, or a quantity is not in the rows.
    """
    first, second = claim.sides
    sets = [found for side in (first, second) if (found := side.seeds(rows)) is not None]
    every = sorted(set.intersection(*sets)) if sets else []
    seeds = [seed for seed in every if _same_origin(first, second, rows, seed)]
    first_values, second_values = (tuple(side.at(rows, seed) for seed in seeds) for side in (first, second))
    if any(value is not None and not math.isfinite(value) for value in (*first_values, *second_values)):
        raise DataError(f"the claim {claim.statement!r} has a value that is not finite; a failed run must have None.")
    return Sides(
        claim,
        tuple(seeds),
        first_values,
        second_values,
        len(every) - len(seeds),
        "; ".join(_unfair_reasons(claim, controls, rows)),
    )


def _same_origin(first: Quantity, second: Quantity, rows: Sequence[Row], seed: int) -> bool:
    """Whether the runs of both sides come from one version of the code and one kind of processor."""
    origins = set()
    for cell in (*first.cells, *second.cells):
        wanted = {**cell, "seed": seed}
        origins |= {(row.get("code", ""), row.get("cpu", "")) for row in rows if wanted.items() <= row.items()}
    return len(origins) <= 1


def _unfair_reasons(claim: Claim, controls: Sequence[Control], rows: Sequence[Row]) -> Iterator[str]:
    requirements = {control.name: control for control in controls if isinstance(control, Requirement)}
    for name in claim.requires:
        if name not in requirements:
            raise DataError(
                f"the claim {claim.statement!r} requires {name!r}; the recipe has {', '.join(requirements) or 'none'}."
            )
        if not (required := requirements[name].check(rows)).passed:
            yield required.reason
    first, second = claim.sides
    cells = [*first.cells, *(() if claim.loser_may_fail else second.cells)]
    for control in (control for control in controls if isinstance(control, Learned)):
        for position, cell in enumerate(cells):
            if cell not in cells[:position] and (result := control.check(rows, cell)) is not None and not result.passed:
                yield result.reason
