"""Tables and plots of the recipe `bgn_adaptation`."""

from __future__ import annotations

from pathlib import Path

from matplotlib import colormaps
from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.bgn.adaptation.settings import AdaptationSettings
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_table, save_figure, select, successful
from anynorm.lab.recipes.support.runs import options_of
from anynorm.lab.training.result import Result
from anynorm.table import Table

METHODS = {"source_accuracy": "source only", "adabn_accuracy": "AdaBN", "accuracy": "adapted"}


def tables(record: RecipeRecord[AdaptationSettings]) -> list[Table]:
    """Return the accuracies by norm and method."""
    rows = []
    for norm, method in record.settings.norms.items():
        accuracies = {title: Result.of(successful(record.rows, column, norm=norm) or [None]) for column, title in METHODS.items()}
        rows.append({"norm": norm, "spec": method.norm, "method": method.task, **accuracies})
    result = [result_table(rows, "Accuracy on the target's test images in %, mean ± sd over seeds; adapted: by the method.")]
    if record.settings.pairs:
        rows = []
        for norm in record.settings.norms:
            found = [value for value in select(record.rows, "by_pair", norm=norm) if value is not None]
            by_pair = {pair: Result.of([each[pair] for each in found] or [None]) for pair in record.settings.pairs}
            rows.append({"norm": norm, **by_pair})
        result.append(result_table(rows, "Table 7: accuracy on the target in % after adaptation, mean ± sd over seeds."))
    return result


def plot(record: RecipeRecord[AdaptationSettings], path: Path) -> list[Path]:
    """Plot the accuracy on the target before and after adaptation, and over the epochs."""
    fig = Figure(figsize=(11, 4), layout="constrained")
    bars, curves = fig.subplots(1, 2)
    norms = list(record.settings.norms)
    for k, (column, title) in enumerate(METHODS.items()):
        values = [successful(record.rows, column, norm=norm) for norm in norms]
        positions = [index + 0.27 * (k - 1) for index in range(len(norms))]
        means = [sum(each) / len(each) if each else 0.0 for each in values]
        bars.bar(positions, means, 0.25, color=draw.COLORS[k], label=title, alpha=0.85)
        for position, each in zip(positions, values, strict=True):
            bars.plot([position] * len(each), each, ".", color="black", ms=3)
    bars.set_xticks(range(len(norms)), norms, rotation=25)
    bars.set(ylabel="accuracy on the target (%)", ylim=(0, 118), title="Before and after adaptation, with every seed")
    bars.legend(frameon=False, loc="upper center", ncols=3)
    for norm, color in zip(norms, colormaps["tab10"].colors, strict=False):  # type: ignore[attr-defined]
        rows = [row for row in record.rows if row["norm"] == norm and not row["failure"]]
        if rows:
            means = [sum(each) / len(each) for each in zip(*(row["accuracies"] for row in rows), strict=True)]
            curves.plot(rows[0]["epochs"], means, "o-", ms=3, color=color, label=norm)
    curves.axvline(options_of(record.settings.training.config).source_epochs, color="gray", lw=1, ls=":")
    curves.set(xlabel="epoch (adaptation right of the dotted line)", ylabel="accuracy on the target (%)", title="Mean over seeds")
    curves.legend(frameon=False, fontsize="small")
    return save_figure(fig, path)
