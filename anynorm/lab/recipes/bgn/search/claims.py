"""Controls and claims of the recipe `bgn_search`."""

from __future__ import annotations

from dataclasses import replace

from anynorm.lab.recipes.bgn.batch_size import SLOWER
from anynorm.lab.recipes.bgn.search.settings import POLICY_PART, PUBLISHED_SPACE, SearchSettings, SearchTable
from anynorm.lab.recipes.support.claims import OURS, Check, Claim, Equivalent, Larger, Published, Source, more_accurate
from anynorm.lab.recipes.support.controls import Control, Learned, Requirement
from anynorm.lab.recipes.support.quantities import Constant, Measured, accuracy_of
from anynorm.lab.training.sweep import Row

PAPER = {
    "Table 3": {"BN": 97.33, "GN": 94.78, "PN": 94.41, "BGN": 97.40},
    "Table 4": {"BN": 97.18, "GN": 95.52, "BGN": 97.15},
}
"""Accuracies in the paper in %; norms that are not listed fail to converge."""
ORDERS = {
    "Table 3": [("BGN", "BN"), ("BGN", "GN"), ("BGN", "PN"), ("BN", "GN"), ("BN", "PN")],
    "Table 4": [("BGN", "GN"), ("BN", "GN")],
}
FAILING = {"Table 3": ["IN", "LN"], "Table 4": ["IN", "LN", "PN"]}
"""Norms that fail to converge in the paper."""


BATCH_FREE = ("GN", "LN", "PN", "IN")
"""Norms that need more steps than BN. Where one is further below BN than in the paper, it is not fair to compare its accuracy."""


def controls(settings: SearchSettings) -> list[Control]:
    """Return that every network has learned, BN in particular before another norm fails, and that α of searches has moved."""
    result: list[Control] = []
    for part, table in settings.tables.items():
        result.append(Learned(table.min_train_accuracy, where={"part": part}))
        bn = Measured("train_accuracy", {"part": part, "norm": "BN"})
        result.append(Requirement(_bn_learns(part), bn, table.min_train_accuracy))
        for norm in (norm for norm in BATCH_FREE if norm in table.norms and norm in PAPER[part]):
            lead = accuracy_of(part=part, norm=norm) - accuracy_of(part=part, norm="BN")
            published = PAPER[part][norm] - PAPER[part]["BN"]
            result.append(Requirement(_near_bn(part, norm), lead, round(published - SLOWER, 2)))
        if table.search is not None and table.search.min_alpha_distance is not None:
            distance, name = table.search.min_alpha_distance, "distance of α from uniform"
            result.append(Learned(distance, "alpha_distance", name, where={"part": part}))
    return result


def claims(settings: SearchSettings) -> list[Claim | Check]:
    """Return the orders and the failing norms of both tables, and MANAS beside random search."""
    result: list[Claim | Check] = []
    for part, table in settings.tables.items():
        source, published = Source("bgn", part), PAPER[part]
        for norm, other in (pair for pair in ORDERS[part] if table.norms.keys() >= set(pair)):
            claim = more_accurate(norm, other, source, Published(published[norm], published[other]), part=part)
            requires = tuple(_near_bn(part, each) for each in (norm, other) if each in BATCH_FREE)
            result.append(replace(claim, statement=f"{norm} is more accurate than {other} ({part})", requires=requires))
        if part == "Table 4":
            result.append(_slightly_below(part))
        for norm in (norm for norm in FAILING[part] if norm in table.norms):
            if not table.ends_with_norm:
                result.append(_below_bgn(part, norm))
            if table.space == PUBLISHED_SPACE or (table.ends_with_norm and norm == "IN"):
                result.append(_fails(part, norm, table))
    for policy in (policy for policy in settings.policies if policy != "random"):
        result.append(
            Larger(
                statement=f"MANAS with {policy} recommends a more accurate cell than random search",
                source=OURS,
                larger=Measured(_accuracy_in_benchmark, {"part": POLICY_PART, "policy": policy}),
                smaller=Measured(_accuracy_in_benchmark, {"part": POLICY_PART, "policy": "random"}),
            )
        )
    return result


def _accuracy_in_benchmark(row: Row) -> float | None:
    """Return the accuracy of a recommended cell: a number of the benchmark, not measured on the test images of the tables."""
    value: float | None = row["accuracy"]
    return value


def _near_bn(part: str, norm: str) -> str:
    return f"points of {norm} above BN in {part}"


def _bn_learns(part: str) -> str:
    return f"training accuracy of BN in {part} (%)"


def _below_bgn(part: str, norm: str) -> Larger:
    """Return that a norm which fails in the paper is below BGN; it may fail here, too."""
    claim = more_accurate("BGN", norm, Source("bgn", part, f"{norm} fails to converge"), part=part)
    statement = f"BGN is more accurate than {norm}, which fails to converge in the paper ({part})"
    return replace(claim, statement=statement, group=f"{norm} in {part}", loser_may_fail=True)


def _fails(part: str, norm: str, table: SearchTable) -> Larger:
    """Return that a norm fails: in the paper's networks, or, as a claim of ours, IN in networks that end with a norm."""
    cause = ", in a network that ends with a norm" if table.ends_with_norm else ""
    return Larger(
        statement=f"{norm} fails: its training accuracy stays below {table.min_train_accuracy:g} % ({part}{cause})",
        source=OURS if cause else Source("bgn", "text on Tables 3, 4: convergence", f"{norm} fails to converge"),
        larger=Constant(table.min_train_accuracy),
        smaller=Measured("train_accuracy", {"part": part, "norm": norm}),
        group=f"{norm} in {part}",
        requires=(_bn_learns(part),),
        loser_may_fail=True,
    )


def _slightly_below(part: str) -> Equivalent:
    return Equivalent(
        statement=f"BGN is at most slightly less accurate than BN: within 1 point ({part})",
        source=Source("bgn", part, "BGN … underperforms BN only slightly"),
        published=Published(PAPER[part]["BGN"], PAPER[part]["BN"]),
        first=accuracy_of(part=part, norm="BGN"),
        second=accuracy_of(part=part, norm="BN"),
        delta=1.0,
    )
