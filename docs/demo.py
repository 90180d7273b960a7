"""Write docs/demo.json, docs/demo.png, docs/cuts.svg and the first table of README.md and docs/index.md: `python docs/demo.py`.

The results are read from the runs of `make demo` if all of them are finished, and otherwise from the existing docs/demo.json.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from anynorm.draw import cuts
from anynorm.draw.axes import COLORS
from anynorm.lab.comparison.compare import make_comparison
from anynorm.lab.comparison.comparison import Comparison
from anynorm.lab.comparison.results import Results
from anynorm.lab.comparison.table import ComparisonTable
from anynorm.lab.training.devices import Hardware
from anynorm.table import json_safe

FOLDER = Path(__file__).parent
COMMAND = "anynorm compare"


def collect(comparison: Comparison, table: ComparisonTable) -> dict[str, Any]:
    """Return the contents of docs/demo.json: the table, the recommendation, all test errors, and the provenance."""
    legend, recommendation = table.finding.split("\n")
    results = table.results
    provenance = results.records[0].provenance
    return {
        "command": COMMAND,
        "rows": table.rows,
        "legend": legend,
        "recommendation": recommendation,
        "markdown": format_markdown(results),
        "test_errors": {
            f"{norm}, batch {size}": [record.value for record in results.cell(norm, size)]
            for norm in results.norms
            for size in results.batch_sizes
        },
        "seeds": comparison.seeds,
        "config": {name: value for name, value in asdict(comparison.base).items() if name not in ("norm", "batch_size", "seed")},
        "lr": f"config.lr at batch size {comparison.base.batch_size}, {comparison.lr_scaling} in the batch size",
        "minutes": round(sum(record.seconds or 0.0 for record in results.records) / 60 / provenance["cores"], 2),
        "provenance": provenance,
    }


def format_markdown(results: Results) -> str:
    """Return the test errors as a Markdown table; the lowest, and those not higher by more than chance and a margin, are bold."""
    sizes = results.batch_sizes
    lines = [f"| norm | {' | '.join(f'batch size {size}' for size in sizes)} |", "|---" * (1 + len(sizes)) + "|"]
    for norm in results.norms:
        cells = []
        for size, ranking in results.rankings.items():
            text = format(results.result(norm, size), results.metric.result_format)
            cells.append(f"**{text}**" if norm in ranking.not_worse else text)
        lines.append(f"| `{norm}` | {' | '.join(cells)} |")
    legend = "Bold: lowest error of the column, and those that are not higher by more than chance and half a point."
    return "\n".join([*lines, "", legend, "", results.recommendation])


def fill_page(path: Path, markdown: str) -> None:
    """Replace the text of a page between the comments `demo` and `end of demo`."""
    start, _, rest = path.read_text().partition("<!-- demo -->\n")
    _, _, end = rest.partition("<!-- end of demo -->")
    path.write_text(f"{start}<!-- demo -->\n{markdown}\n<!-- end of demo -->{end}")


def draw(comparison: Comparison, results: Results) -> Figure:
    """Draw the test error of each norm at each batch size: mean over seeds with its 95 % interval."""
    fig = Figure(figsize=(8, 3.6), layout="constrained")
    ax = fig.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    width = 0.8 / len(comparison.batch_sizes)
    for k, (size, color) in enumerate(zip(comparison.batch_sizes, (COLORS[1], COLORS[0]), strict=True)):
        cells = [results.result(norm, size) for norm in comparison.norms]
        means = [cell.mean or 0.0 for cell in cells]
        limits = [cell.interval or (mean, mean) for cell, mean in zip(cells, means, strict=True)]
        errors = [
            [mean - max(0.0, low) for mean, (low, _) in zip(means, limits, strict=True)],
            [min(100.0, high) - mean for mean, (_, high) in zip(means, limits, strict=True)],
        ]
        positions = [position + (k - 0.5) * width for position in range(len(means))]
        ax.bar(positions, means, width, yerr=errors, capsize=3, color=color, ecolor="#333333", label=f"batch size {size}")
        for position, mean, above in zip(positions, means, errors[1], strict=True):
            ax.annotate(f"{mean:.1f}", (position, mean + above), (0, 3), textcoords="offset points", ha="center", fontsize=9)
    ax.set_xticks(range(len(comparison.norms)), comparison.norms)
    base = comparison.base
    ax.set(
        ylabel="test error (%)",
        title=f"{base.model} on {base.data}, {base.epochs} epochs, {comparison.seeds} seeds (mean and 95 % interval)",
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
    comparison = make_comparison({}, FOLDER.parent / "runs" / "demo", Hardware())
    records = comparison.read()
    if not comparison.missing(records):
        table = comparison.table(records)
        path.write_text(json.dumps(json_safe(collect(comparison, table)), indent=2, ensure_ascii=False) + "\n")
        draw(comparison, table.results).savefig(FOLDER / "demo.png", dpi=110)
    draw_cuts(FOLDER / "cuts.svg")
    for page in (FOLDER.parent / "README.md", FOLDER / "index.md"):
        fill_page(page, json.loads(path.read_text())["markdown"])


if __name__ == "__main__":
    main()
