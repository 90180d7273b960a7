"""Tables and plots of `sabn_search`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from anynorm import draw
from anynorm.lab.recipes.sabn.search.claims import DATA_SETS, METRICS, TABLE_2
from anynorm.lab.recipes.support.record import RecipeRecord
from anynorm.lab.recipes.support.rows import result_over_seeds, save_figure, select, successful
from anynorm.lab.training.sweep import Row
from anynorm.table import Table


def tables(record: RecipeRecord[Any]) -> list[Table]:
    """Return the metrics by method, with a random cell and the best cell of the table, for each data set."""
    result = []
    for search, details in record.settings.searches.items():
        for data_set in details.accuracies:
            columns = {f"{name}, %" if "accuracy" in name else name: f"{metric} {data_set}" for metric, name in METRICS.items()}
            distance = {"α from uniform": "alpha distance"} if "alpha distance" in record.rows[0] else {}
            rows: list[Row] = []
            for method in record.settings.methods:
                values, others = (
                    {
                        title: result_over_seeds(record.rows, column, search=search, method=method)
                        for title, column in part.items()
                    }
                    for part in (columns, {"skips": "skips", "supernet error, %": "error"} | distance)
                )
                rows.append({"method": method, "paper, %": TABLE_2[data_set].get(method, ""), **values, **others})
            table = record.rows[0]["table"] | next(row["table"] for row in record.rows if row["search"] == search)
            rows += _reference_rows(table[data_set], rows[0])
            formats = {"paper, %": ".2f", "skips": ".1f", "supernet error, %": ".1f", "α from uniform": ".2f"} | dict.fromkeys(
                columns, ".2f"
            )
            finding = f"Search on {search}; accuracies on {DATA_SETS[data_set]}. Mean ± sd over seeds."
            result.append(Table(rows, finding, formats=formats))
    return result


def _reference_rows(table: dict[str, float], like: Row) -> list[Row]:
    """Return the rows of a uniformly random cell and of the best cell, with the columns of another row."""
    random, best = (dict.fromkeys(like, "") for _ in range(2))
    random |= {"method": "random cell", "accuracy of the cell, %": f"{table['mean']:.2f} ± {table['sd']:.2f} (cells)"}
    random |= {"expected accuracy, %": f"{table['mean']:.2f}", "rank correlation": "0"}
    best |= {"method": "best cell", "accuracy of the cell, %": f"{table['best']:.2f}"}
    return [random, best]


def plot(record: RecipeRecord[Any], path: Path) -> list[Path]:
    """Plot expected accuracy and rank correlation over steps, and the accuracy of each cell, one row per data set."""
    panels = [(search, name) for search, details in record.settings.searches.items() for name in details.accuracies]
    fig = Figure(figsize=(15, 3.6 * len(panels)), layout="constrained")
    for (search, data_set), axes in zip(panels, fig.subplots(len(panels), 3, squeeze=False), strict=True):
        table = next(row["table"] for row in record.rows if row["search"] == search)[data_set]
        for ax, metric, unit in ((axes[0], "expected accuracy", " (%)"), (axes[1], "rank correlation", "")):
            labels = {"xlabel": "step", "ylabel": f"{metric}{unit}", "title": f"{DATA_SETS[data_set]}, search on {search}"}
            draw.lines(_by_step(record, search, f"{metric} {data_set}"), ax, **labels)
            ax.get_legend().remove()
            ax.axhline(table["mean"] if unit else 0, color="gray", ls=":", lw=1)
        _draw_cells(axes[2], record, search, data_set)
        for value, name in ((table["mean"], "random cell (mean)"), (table["best"], "best cell")):
            axes[2].axhline(value, color="gray", ls=":" if name.startswith("random") else "-", lw=1, label=name)
        axes[2].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        axes[0].legend(frameon=False, fontsize="small")
    return save_figure(fig, path, dpi=90)


def _draw_cells(ax: Any, record: RecipeRecord[Any], search: str, data_set: str) -> None:
    """Plot the accuracy of the cell of each seed."""
    methods = list(record.settings.methods)
    for index, (method, color) in enumerate(zip(methods, draw.COLORS, strict=False)):
        values = successful(record.rows, f"cell accuracy {data_set}", search=search, method=method)
        ax.plot([index] * len(values), values, "o", color=color, markersize=5)
    ax.set_xticks(range(len(methods)), [method.removeprefix("DARTS-") for method in methods], rotation=20)
    ax.set(ylabel="accuracy of the cell (%)", title="cell of the largest α, one point per seed")


def _by_step(record: RecipeRecord[Any], search: str, name: str) -> dict[str, dict[int, list[float]]]:
    result: dict[str, dict[int, list[float]]] = {}
    for method in record.settings.methods:
        points: dict[int, list[float]] = {}
        for curves in select(record.rows, "curves", search=search, method=method):
            for step, value in zip(curves["step"], curves[name], strict=True):
                points.setdefault(step, []).append(value)
        result[method] = points
    return result
