"""Tables and plots of the recipe `bgn_search`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.bgn.search.claims import PAPER
from anynorm.lab.recipes.bgn.search.settings import POLICY_PART, SearchSettings
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, result_table, save_figure, successful
from anynorm.lab.training.sweep import Row
from anynorm.table import Table

CHANCE = 10.0
"""Accuracy in % on CIFAR-10 of a classifier that always predicts the same class."""


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
