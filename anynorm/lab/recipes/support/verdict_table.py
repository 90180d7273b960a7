"""Verdicts and controls as tables."""

from __future__ import annotations

from collections.abc import Sequence

from anynorm.lab.recipes.support.claims import RATIO, Claim, Level
from anynorm.lab.recipes.support.controls import ControlResult
from anynorm.lab.recipes.support.verdicts import Verdict, count_groups
from anynorm.table import Table, pluralize


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Return a table with one row per claim.

    Columns: claim; source; the two sides, mean ± sd over n seeds; the difference (or ratio) with its 95 % interval; the paper's
    difference; δ, up to which a difference is called equal; the smallest difference that n seeds find with a power of 80 %; p
    with Holm's correction; verdict.
    """
    return Table([_row(verdict) for verdict in verdicts], summary(verdicts))


def summary(verdicts: Sequence[Verdict]) -> str:
    """Return the number of claims of the paper and of ours by verdict, such as "Of the paper's 3 claims, 2 hold, 1 undecided"."""
    parts = []
    for owner, chosen in (
        ("the paper's", [verdict for verdict in verdicts if verdict.claim.source.paper]),
        ("our own", [verdict for verdict in verdicts if not verdict.claim.source.paper]),
    ):
        counts = count_groups(chosen)
        if total := sum(counts.values()):
            named = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
            parts.append(f"Of {owner} {pluralize(total, 'distinct claim')}: {named}.")
    return " ".join(parts)


def control_table(results: Sequence[ControlResult]) -> Table:
    """Return a table with one row per control and cell: the smallest value over runs, the threshold, and whether it passes."""
    rows = [
        {
            "control": result.name,
            "of": "all" if result.cell is None else ", ".join(f"{key} {value}" for key, value in sorted(result.cell.items())),
            "value": "not recorded" if result.value is None else f"{result.value:.4g}",
            "at least": f"{result.at_least:.4g}",
            "passed": "yes" if result.passed else "no",
        }
        for result in results
    ]
    num_passed = sum(result.passed for result in results)
    values = "Values of a cell are the smallest over seeds, those of an effect (all) the mean."
    return Table(rows, f"{num_passed} of {pluralize(len(results), 'control')} passed. {values}")


def format_difference(claim: Claim, value: float) -> str:
    """Return a difference on the scale of a claim as text: "+1.2", or "× 1.2" for a ratio."""
    if claim.scale is RATIO:
        return f"× {claim.scale.inverse(value):.3g}"
    return f"{value:+.3g}"


def _row(verdict: Verdict) -> dict[str, object]:
    claim, estimate = verdict.claim, verdict.estimate
    margin = claim.margin
    if estimate is None:
        difference = smallest = ""
    else:
        low, high = (format_difference(claim, limit) for limit in estimate.interval())
        difference = f"{format_difference(claim, estimate.difference)} [{low}, {high}]"
        smallest = format_difference(claim, estimate.smallest_difference(verdict.level)).lstrip("+")
    published = claim.source.quote if margin is None else format_difference(claim, margin)
    return {
        "claim": claim.statement + ("" if claim.level is Level.RUN else f" (per {claim.level.value})"),
        "source": str(claim.source),
        "first": verdict.first,
        "second": verdict.second,
        "n": verdict.n,
        "difference [95 %]": difference,
        "paper": published,
        "δ": "" if claim.transformed_delta is None else format_difference(claim, claim.transformed_delta).lstrip("+"),
        "found with 80 %": smallest,
        "p": "" if verdict.p is None else f"{verdict.p:.2g}",
        "verdict": verdict.verdict + (f" ({_shorten(verdict.note)})" if verdict.note else ""),
    }


def _shorten(note: str) -> str:
    """Return a note with at most three failing controls."""
    reasons = note.split("; ")
    return "; ".join(reasons[:3]) + (f"; {len(reasons) - 3} more" if len(reasons) > 3 else "")
