"""Write docs/demo.json, docs/demo.png, docs/cuts.svg and the first table of README.md and docs/index.md: `python docs/demo.py`.

The results are read from the runs of `make demo` if all of them are finished, and otherwise from the existing docs/demo.json.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from anynorm.draw import COLORS, cuts
from anynorm.lab.comparison.comparison import Comparison, make_base
from anynorm.lab.report.results import Row, rank, result_of, select
from anynorm.lab.training.store import Store
from anynorm.table import json_safe

FOLDER = Path(__file__).parent
COMMAND = "anynorm compare"


def collect(comparison: Comparison, rows: list[Row]) -> dict[str, Any]:
    """Return the contents of docs/demo.json: the table, the recommendation, all test errors, and the provenance."""
    legend, recommendation = comparison.table().finding.split("\n")
    store = Store(comparison.root)
    records = [store.record(comparison.config(**cell).id) for cell in comparison.sweep.cells]
    return {
        "command": COMMAND,
        "rows": comparison.table().rows,
        "legend": legend,
        "recommendation": recommendation,
        "markdown": format_markdown(comparison, rows, recommendation),
        "test_errors": {
            f"{norm}, batch {size}": [row["value"] for row in select(rows, norm, size)]
            for norm in comparison.norms
            for size in comparison.batch_sizes
        },
        "seeds": comparison.seeds,
        "config": {name: value for name, value in asdict(comparison.base).items() if name not in ("norm", "batch_size", "seed")},
        "lr": f"config.lr at batch size {comparison.base.batch_size}, {comparison.lr_scaling} in the batch size",
        "minutes": round(sum(record["seconds"] for record in records) / 60 / records[0]["provenance"]["cores"], 2),
        "provenance": records[0]["provenance"],
    }


def format_markdown(comparison: Comparison, rows: list[Row], recommendation: str) -> str:
    """Return the test errors as a Markdown table; the lowest is bold, and those not significantly higher are marked with *."""
    rankings = {size: rank(rows, size) for size in comparison.batch_sizes}
    lines = [f"| norm | {' | '.join(f'batch size {size}' for size in rankings)} |", "|---" * (1 + len(rankings)) + "|"]
    for norm in comparison.norms:
        cells = [format(result_of(select(rows, norm, size)), comparison.metric.result_format) for size in rankings]
        marked = [
            f"**{cell}**" if norm == ranking.best else f"{cell} \\*" if norm in ranking.alike else cell
            for cell, ranking in zip(cells, rankings.values(), strict=True)
        ]
        lines.append(f"| `{norm}` | {' | '.join(marked)} |")
    legend = "Bold: lowest error of the column. \\*: not significantly higher (paired t-test over 3 seeds, Holm's correction)."
    return "\n".join([*lines, "", legend, "", recommendation])


def fill_page(path: Path, markdown: str) -> None:
    """Replace the text of a page between the comments `demo` and `end of demo`."""
    start, _, rest = path.read_text().partition("<!-- demo -->\n")
    _, _, end = rest.partition("<!-- end of demo -->")
    path.write_text(f"{start}<!-- demo -->\n{markdown}\n<!-- end of demo -->{end}")


def draw(comparison: Comparison, rows: list[Row]) -> Figure:
    """Draw the test error of each norm at each batch size: mean and standard deviation over seeds."""
    fig = Figure(figsize=(8, 3.6), layout="constrained")
    ax = fig.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    width = 0.8 / len(comparison.batch_sizes)
    for k, (size, color) in enumerate(zip(comparison.batch_sizes, (COLORS[1], COLORS[0]), strict=True)):
        results = [result_of(select(rows, norm, size)) for norm in comparison.norms]
        means, sds = [result.mean or 0.0 for result in results], [result.sd or 0.0 for result in results]
        positions = [position + (k - 0.5) * width for position in range(len(means))]
        ax.bar(positions, means, width, yerr=sds, capsize=3, color=color, ecolor="#333333", label=f"batch size {size}")
        for position, mean, sd in zip(positions, means, sds, strict=True):
            ax.annotate(f"{mean:.1f}", (position, mean + sd), (0, 3), textcoords="offset points", ha="center", fontsize=9)
    ax.set_xticks(range(len(comparison.norms)), comparison.norms)
    base = comparison.base
    ax.set(
        ylabel="test error (%)", title=f"{base.model} on {base.data}, {base.epochs} epochs, {comparison.seeds} seeds (mean ± sd)"
    )
    ax.legend(frameon=False)
    return fig


def draw_cuts(path: Path) -> None:
    """Draw the cuts of five common norms side by side."""
    specs = ("bn", "in", "ln", "gn:2", "bgn:12")
    fig = Figure(figsize=(14, 3.6), facecolor="none")
    for ax, spec in zip(fig.subplots(1, len(specs)), specs, strict=True):
        cuts(spec, (4, 6, 4), ax=ax, legend=False)
    fig.subplots_adjust(0, 0, 1, 1, 0, 0)
    with rc_context({"svg.hashsalt": "anynorm"}):
        fig.savefig(path, metadata={"Date": None})


def main() -> None:
    """Write all files."""
    path = FOLDER / "demo.json"
    comparison = Comparison(make_base({}), root=FOLDER.parent / "runs" / "demo")
    rows = comparison.rows()
    if not comparison.sweep.missing(rows):
        path.write_text(json.dumps(json_safe(collect(comparison, rows)), indent=2, ensure_ascii=False) + "\n")
        draw(comparison, rows).savefig(FOLDER / "demo.png", dpi=110)
    draw_cuts(FOLDER / "cuts.svg")
    for page in (FOLDER.parent / "README.md", FOLDER / "index.md"):
        fill_page(page, json.loads(path.read_text())["markdown"])


if __name__ == "__main__":
    main()
