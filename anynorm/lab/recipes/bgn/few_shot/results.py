"""Controls, claims, tables and plots of the recipe `bgn_few_shot`."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.bgn.few_shot.settings import FewShotSettings
from anynorm.lab.recipes.support.claims import Check, Claim, Larger, Published, Source
from anynorm.lab.recipes.support.controls import Control, Learned
from anynorm.lab.recipes.support.quantities import Measured
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, result_table, save_figure, successful
from anynorm.lab.recipes.support.runs import options_of
from anynorm.lab.tasks.few_shot.task import metric_name
from anynorm.table import Table, pluralize

SHOTS = (1, 5)
ACCURACIES = {
    "BN": (59.30, 76.22), "IN": (52.17, 70.49), "LN": (57.82, 74.87), "GN": (56.55, 73.20), "PN": (56.59, 73.89),
    "BGN": (59.50, 76.32),
}  # fmt: skip
"""The paper's accuracies in percent with 1 and with 5 shots."""


def controls(settings: FewShotSettings) -> list[Control]:
    """Return that every network has learned its base classes."""
    return [Learned(settings.min_train_accuracy, name="accuracy on base classes (%)")]


def claims(settings: FewShotSettings) -> list[Claim | Check]:
    """Return the order of BGN and each other norm, with 1 and with 5 shots of the same networks."""
    return [
        Larger(
            statement=f"the {metric_name(shots)} of BGN is larger than that of {norm}",
            source=Source("bgn", "Table 6"),
            published=Published(ACCURACIES["BGN"][index], ACCURACIES[norm][index]),
            larger=Measured(metric_name(shots), {"norm": "BGN"}),
            smaller=Measured(metric_name(shots), {"norm": norm}),
            group=f"BGN against {norm}, same networks",
        )
        for index, shots in enumerate(SHOTS)
        for norm in settings.norms
        if norm != "BGN"
    ]


def tables(record: RecipeRecord[FewShotSettings]) -> list[Table]:
    """Return the accuracies by norm, with the spread over trainings and the confidence interval over episodes."""
    rows = []
    for norm in record.settings.norms:
        row: dict[str, Any] = {"norm": norm, "base classes": result_over_seeds(record.rows, "train_accuracy", norm=norm)}
        for shots in SHOTS:
            name = metric_name(shots)
            row[name] = result_over_seeds(record.rows, name, norm=norm)
            intervals = successful(record.rows, f"{name}, 95 % CI", norm=norm)
            row[f"{shots}-shot CI"] = f"± {statistics.fmean(intervals):.1f}" if intervals else "failed"
        for shots in SHOTS:
            row[f"{shots}-shot, prototypes"] = result_over_seeds(record.rows, metric_name(shots, " (prototypes)"), norm=norm)
        rows.append(row)
    num_episodes = options_of(record.settings.training.config).num_episodes
    finding = (
        f"Accuracy in % on {num_episodes} episodes: mean ± sd over trainings. CI: the 95 % confidence interval over episodes of "
        "one training, mean over trainings. Base classes: accuracy in training."
    )
    return [result_table(rows, finding)]


def plot(record: RecipeRecord[FewShotSettings], path: Path) -> list[Path]:
    """Plot the accuracy of every training with its confidence interval over episodes, and the mean of each norm."""
    norms = list(record.settings.norms)
    fig = Figure(figsize=(9, 3.6), layout="constrained")
    for ax, shots in zip(fig.subplots(1, len(SHOTS)), SHOTS, strict=True):
        name = metric_name(shots)
        for position, (norm, color) in enumerate(zip(norms, draw.COLORS, strict=False)):
            values = successful(record.rows, name, norm=norm)
            intervals = successful(record.rows, f"{name}, 95 % CI", norm=norm)
            places = [position + 0.15 * (k - (len(values) - 1) / 2) for k in range(len(values))]
            ax.errorbar(places, values, intervals, fmt="o", color=color, capsize=2, ms=4)
            if values:
                ax.hlines(statistics.fmean(values), position - 0.35, position + 0.35, color=color, alpha=0.6)
        ax.set_xticks(range(len(norms)), norms)
        ax.set(ylabel=f"{name} (%)", title=f"{pluralize(shots, 'shot')}")
    fig.suptitle("one point per training, with the 95 % interval over episodes; line: mean over trainings", fontsize="small")
    return save_figure(fig, path)
