"""Generate the table of conversions in docs/guide/surgery.md from its record, docs/guide/accuracy.json."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from tools.markdown import markdown_table

RECORD = Path(__file__).parents[1] / "docs" / "guide" / "accuracy.json"
PAGE = RECORD.with_name("surgery.md")
MARKER = "conversions"
"""Name of the two markers in the page between which the table is inserted."""


def conversions_block(record: Path = RECORD) -> str:
    """Return the table: one row per network and spec, one column per method, with the mean and the range over the seeds.

    If no cell has been measured, return a sentence that says so.
    """
    content = json.loads(record.read_text())["conversions"]
    cells: list[dict[str, Any]] = content["cells"]
    if not cells:
        return "No conversion has been measured yet."
    methods = list(dict.fromkeys(cell["method"] for cell in cells))
    order = {name: k for k, name in enumerate(("abrupt", "fit", "fit + distill"))}
    methods.sort(key=lambda name: order.get(name, len(order)))
    rows = [["network", "new norm", *methods, "images", "minutes of one core", "seeds"]]
    for network, spec in dict.fromkeys((cell["network"], cell["spec"]) for cell in cells):
        own = [cell for cell in cells if (cell["network"], cell["spec"]) == (network, spec)]
        metric = "accuracy" if "accuracy" in own[0] else "agreement"
        by_method = {name: [cell for cell in own if cell["method"] == name] for name in methods}
        last = next(by_method[name] for name in reversed(methods) if by_method[name])
        name = f"{network} ({content['originals'][network]:.2f})" if metric == "accuracy" else f"{network}, agreement"
        minutes = statistics.mean(cell["cpu_minutes"] for cell in last)
        rows.append(
            [
                name,
                f"`{spec}`",
                *(_values([cell[metric] for cell in by_method[name]]) for name in methods),
                str(last[0]["images"]),
                f"{minutes:.1f}",
                str(len(last)),
            ]
        )
    return "\n".join(markdown_table(rows))


def _values(values: list[float]) -> str:
    """Return the mean, and the smallest and largest value if there are several.

    >>> _values([91.0, 90.5]), _values([3.0]), _values([])
    ('90.75 (90.50–91.00)', '3.00', '')
    """
    if len(values) < 2:
        return "".join(f"{value:.2f}" for value in values)
    return f"{statistics.mean(values):.2f} ({min(values):.2f}–{max(values):.2f})"
