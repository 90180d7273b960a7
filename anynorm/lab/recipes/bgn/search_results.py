"""Settings, controls, claims, tables and plots of the recipe `bgn_search`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.support.claims import OURS, Check, Claim, Equivalent, Larger, Published, Source, more_accurate
from anynorm.lab.recipes.support.controls import Control, Learned, Requirement
from anynorm.lab.recipes.support.quantities import Constant, Measured, accuracy_of
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, result_table, save_figure, successful
from anynorm.lab.recipes.support.settings import Settings, Training
from anynorm.lab.training.sweep import Row
from anynorm.table import Table

PAPER = {
    "Table 3": {"BN": 97.33, "GN": 94.78, "PN": 94.41, "BGN": 97.40},
    "Table 4": {"BN": 97.18, "GN": 95.52, "BGN": 97.15},
}
"""Accuracies in the paper in %; norms that are not listed fail to converge."""
CHANCE = 10.0
"""Accuracy in % on CIFAR-10 of a classifier that always predicts the same class."""
POLICY_PART = "policies"
"""Name of the part of the recipe that compares search policies, in addition to the two tables of the paper."""


@dataclass(frozen=True)
class Search:
    """A search for a cell.

    Args:
        training: how the supernet is trained.
        norm: the spec of the norm in the search; None for the norm of the network that is trained afterwards.
        affine: whether the norms have γ and β.
        norms: specs by label that differ from those of the network that is trained afterwards, because the search has other
            channels.
        min_alpha_distance: mean distance of softmax(α) from uniform, in [0, 1), below which a search has chosen nothing; None if
            the record does not have it.
    """

    training: Training
    norm: str | None = None
    affine: bool = True
    norms: Mapping[str, str] = field(default_factory=dict)
    min_alpha_distance: float | None = None

    def spec(self, label: str, norm: str) -> str:
        """Return the norm of the search for a network with a norm.

        Args:
            label: the label of the norm.
            norm: its spec in the network that is trained afterwards.
        """
        spec = self.norm or self.norms.get(label, norm)
        return spec if self.affine else f"{spec}.none"


@dataclass(frozen=True)
class SearchTable:
    """One table of the paper.

    Args:
        space: the search space, see `Config.model`.
        training: how networks of the cell are trained.
        norms: specs by label.
        search: the search for the cell; None if `architecture` is given.
        architecture: the cell, if there is no search.
        min_train_accuracy: training accuracy in % that every network in a claim must reach, unless the paper says it fails.
    """

    space: str
    training: Training
    norms: Mapping[str, str]
    search: Search | None = None
    architecture: str = ""
    min_train_accuracy: float = 25.0


@dataclass(frozen=True, kw_only=True)
class SearchSettings(Settings):
    """Settings of both tables, and of search policies on a benchmark.

    Args:
        tables: the tables by name.
        benchmark: path of the table of a benchmark, `synthetic_table.NAME`, or "" for none.
        policies: learning rate of each policy; None for a policy that has none.
        policy_seeds: number of seeds of the policies.
        rounds: number of rounds that a policy plays.
        reward_images: number of images whose accuracy is the reward of a cell.
    """

    tables: Mapping[str, SearchTable]
    benchmark: str = ""
    policies: Mapping[str, float | None] = field(default_factory=dict)
    policy_seeds: int = 0
    rounds: int = 0
    reward_images: int = 0

    @property
    def num_test(self) -> int | None:
        """The number of test images of the first table; None if all of the data set are used."""
        return next(iter(self.tables.values())).training.config.num_test


ORDERS = {
    "Table 3": [("BGN", "BN"), ("BGN", "GN"), ("BGN", "PN"), ("BN", "GN"), ("BN", "PN")],
    "Table 4": [("BGN", "GN"), ("BN", "GN")],
}
FAILING = {"Table 3": ["IN", "LN"], "Table 4": ["IN", "LN", "PN"]}
THRESHOLD = 2 * CHANCE
"""Training accuracy in % below which a norm fails: twice that of chance."""


def controls(settings: SearchSettings) -> list[Control]:
    """Return that every network has learned, BN in particular before another norm fails, and that α of searches has moved."""
    result: list[Control] = []
    for part, table in settings.tables.items():
        result.append(Learned(table.min_train_accuracy, where={"part": part}))
        bn = Measured("train_accuracy", {"part": part, "norm": "BN"})
        result.append(Requirement(_bn_learns(part), bn, table.min_train_accuracy))
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
            result.append(replace(claim, statement=f"{norm} is more accurate than {other} ({part})"))
        if part == "Table 4":
            result.append(_slightly_below(part))
        result += [_fails(part, norm, table.space) for norm in FAILING[part] if norm in table.norms]
    for policy in (policy for policy in settings.policies if policy != "random"):
        result.append(
            Larger(
                statement=f"MANAS with {policy} recommends a more accurate cell than random search",
                source=OURS,
                larger=accuracy_of(part=POLICY_PART, policy=policy),
                smaller=accuracy_of(part=POLICY_PART, policy="random"),
            )
        )
    return result


def _bn_learns(part: str) -> str:
    return f"training accuracy of BN in {part} (%)"


def _fails(part: str, norm: str, space: str) -> Larger:
    """Return that a norm fails to learn; IN in the NAS-Bench-201 space fails because of the norm at the end of its networks."""
    by_last_norm = norm == "IN" and space.startswith("nasbench201")
    cause = ", in a network that ends with a norm" if by_last_norm else ""
    return Larger(
        statement=f"{norm} fails: its training accuracy is below {THRESHOLD:g} % ({part}{cause})",
        source=OURS if by_last_norm else Source("bgn", "text on Tables 3, 4: convergence", f"{norm} fails to converge"),
        larger=Constant(THRESHOLD),
        smaller=Measured("train_accuracy", {"part": part, "norm": norm}),
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


def tables(record: RecipeRecord[SearchSettings]) -> list[Table]:
    """Return one table of accuracies by norm per table of the paper, and one of accuracies by policy."""
    result = []
    for part, table in record.settings.tables.items():
        rows = [_row(record, part, norm) for norm in table.norms]
        finding = f"{part}. Accuracies in %, mean ± sd over seeds; – where the paper's norm fails to converge."
        result.append(result_table(rows, finding))
    if record.settings.policies:
        rows = [
            {"policy": policy, "accuracy": result_over_seeds(record.rows, "accuracy", part=POLICY_PART, policy=policy)}
            for policy in record.settings.policies
        ]
        title = f"Test accuracy in % of the recommended cell after {record.settings.rounds} rounds, mean ± sd over seeds."
        result.append(result_table(rows, title))
    return result


def _row(record: RecipeRecord[SearchSettings], part: str, norm: str) -> Row:
    cell, table = {"part": part, "norm": norm}, record.settings.tables[part]
    row: Row = {
        "norm": f"{norm} (`{table.norms[norm]}`)",
        "test": result_over_seeds(record.rows, "accuracy", **cell),
        "training": result_over_seeds(record.rows, "train_accuracy", **cell),
        "paper": f"{PAPER[part][norm]:.2f}" if norm in PAPER[part] else "–",
    }
    if table.search is not None:
        row["supernet"] = result_over_seeds(record.rows, "supernet_accuracy", **cell)
        if record.settings.benchmark:
            row["cell after 200 epochs"] = result_over_seeds(record.rows, "benchmark_accuracy", **cell)
    return row


def plot(record: RecipeRecord[SearchSettings], path: Path) -> list[Path]:
    """Plot the accuracies of all runs by norm and by policy."""
    panels: list[tuple[str, str, list[str], str]] = [
        (part, "norm", list(table.norms), "test accuracy (%)") for part, table in record.settings.tables.items()
    ]
    if record.settings.policies:
        panels.append((POLICY_PART, "policy", list(record.settings.policies), "200-epoch accuracy of the cell (%)"))
    titles = {"Table 3": "Table 3: DARTS with the norm", "Table 4": "Table 4: one cell", POLICY_PART: "MANAS and random search"}
    fig = Figure(figsize=(4.2 * len(panels), 3.8), layout="constrained")
    for ax, (part, key, names, label) in zip(np.atleast_1d(fig.subplots(1, len(panels))), panels, strict=True):
        for position, (name, color) in enumerate(zip(names, draw.COLORS, strict=False)):
            values = successful(record.rows, part=part, **{key: name})
            ax.plot([position] * len(values), values, "o", color=color, alpha=0.6, markersize=5)
            if values:
                ax.plot([position - 0.25, position + 0.25], [float(np.mean(values))] * 2, color=color, lw=2)
        if part != POLICY_PART:
            ax.axhline(CHANCE, color="gray", lw=1, ls=":", label="chance")
            ax.set_ylim(bottom=0)
            ax.legend(frameon=False, loc="lower right")
        ax.set_xticks(range(len(names)), names)
        ax.set(ylabel=label, title=titles[part])
    return save_figure(fig, path)
