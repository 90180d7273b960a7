"""Write docs/interop.md, and the counts in docs/guide/surgery.md, from docs/interop.json.

    python -m tools.interop        (or: make interop-results, which measures missing models first)

A test fails if one of the pages differs from the text generated from the results.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from tools.markdown import markdown_table
from tools.results import insert

ROOT = Path(__file__).parents[1]
RESULTS, PAGE, GUIDE = (ROOT / "docs" / name for name in ("interop.json", "interop.md", "guide/surgery.md"))
MARKER = "interop"
"""Name of the two markers in docs/guide/surgery.md between which the counts are inserted."""
NAMES = {"timm": "timm", "torchvision": "torchvision", "smp": "segmentation_models_pytorch", "transformers": "transformers"}
OPERATIONS = {"bn": "`bn`", "hn": "`hn`", "gn": "`gn:8`", "xbn": "`xbn`", "fold": "`fold`"}
OPERATIONS |= {"fuse": "`fuse`", "to_rms": "`to_rms`", "recalibrate": "`recalibrate`"}
TOTALS = {"fuse": "activations", "to_rms": "norms"}
"""What these operations count, where it is not BatchNorms or blocks."""
USUAL_INPUT = [3, 64, 64]
INTRODUCTION = """# Tested models: timm, torchvision, segmentation_models_pytorch, transformers

<!-- Generated from interop.json by `make interop-results`; do not edit. -->

Which [operations](guide/surgery.md) work on which models of timm, torchvision, segmentation_models_pytorch and transformers.
`make interop` measures every row again and compares it with [the results](interop.json).

A model that is not listed works if its norms are of a known class; `anynorm inspect` lists them, and names the classes that are
not known. Of the detectors, only torchvision's Faster R-CNN is tested (trainable and frozen BatchNorm); see
[Detection](guide/detection.md#on-your-detector).

Models have no pretrained weights. Their running statistics are computed from one batch and then perturbed at random, as is the
affine of their norms, so that equal outputs mean something. A batch has two random inputs of the smallest size that the model
takes: 3&nbsp;×&nbsp;64&nbsp;×&nbsp;64 unless noted next to its name. The models of transformers are small: 3 blocks, 64 channels.

| column | operation | passes if |
|---|---|---|
| BatchNorm | `inspect(model)` | it has the number of norms that pool over samples; "others" are all other norms |
| `bn` | `convert(model, "bn")` | the outputs are equal in eval mode (change ≤ 10⁻⁴ of the largest value) |
| `hn` | `convert(model, "hn")` | the outputs are equal in eval mode (≤ 10⁻³) |
| `bn`, `hn` without BatchNorm | the same | a training step runs: the loss is finite, and gradients reach all norms |
| `gn:8` | `convert(model, "gn:8", groups="nearest")` | a training step runs |
| `xbn` | `xbn(model, "gn:8")` | residual blocks are found, and the outputs are finite |
| `fold` | `fold(model, x)` | the outputs are equal (≤ 10⁻³) |
| `fuse` | `fuse(model, x)` | the outputs are equal in eval mode (≤ 10⁻³), and gradients of a training step are finite |
| `to_rms` | `to_rms(model, x, untie=True)` | the outputs are equal (≤ 10⁻³) |
| `recalibrate` | `recalibrate(model, batches)` | running statistics change, and the outputs are finite |
| `undo` | `report.undo()` after each of them | modules, modes, and all parameters and buffers are as before, bit by bit |

✓: passed for all BatchNorms of the model. A number: of norms, of blocks for `xbn`, of activations for `fuse`, of LayerNorms of
tokens for `to_rms`. –: refused with a message, and the model is unchanged. **✗**: failed. Empty: not measured yet. The numbers in
brackets refer to the [reasons](#reasons).
"""


NOT_RUN = "it does not run on the example"
"""How `fold` begins to explain that a norm was not called."""
SENTENCES = {
    NOT_RUN: "These norms do not run on the example, so they are neither folded nor recalibrated.",
    "needs more than one value per statistic in training": "In training, a feature map of one value per group has no variance; "
    "use larger inputs.",
}
"""Messages that name a layer or a single norm, and what they mean for a model."""


class Notes:
    """The reasons on the page, numbered in the order of their first use."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def refer(self, reasons: list[str]) -> str:
        """Return the numbers of reasons in brackets, with links; empty without reasons."""
        texts = dict.fromkeys(_general(reason) for reason in reasons)
        numbers = sorted(self.numbers.setdefault(text, len(self.numbers) + 1) for text in texts)
        # HTML, since Markdown has no anchors in lists that both GitHub and the documentation site would link to
        links = ", ".join(f'<a href="#reason-{number}">{number}</a>' for number in numbers)
        return f" [{links}]" if numbers else ""

    def lines(self) -> list[str]:
        """Return the list of reasons."""
        return [f'{number}. <a id="reason-{number}"></a>{text}' for text, number in self.numbers.items()]


def _general(reason: str) -> str:
    """Return a reason as a sentence without the class of the model, numbers of channels, and the start of a list of norms.

    >>> _general("No norm of this ConvNeXt pools over samples. where='all' converts these norms:")
    'No norm of this model pools over samples.'
    """
    for pattern, sentence in SENTENCES.items():
        if re.search(pattern, reason):
            return sentence
    reason = re.sub(r"\b([Tt])his [A-Z]\w+", r"\1his model", reason)
    reason = re.sub(r" \(\d+\)| where='all' converts .*:$", "", reason)
    return reason[0].upper() + reason[1:] + ("" if reason.endswith(".") else ".")


def interop_page(results: dict[str, Any]) -> str:
    """Return the text of docs/interop.md."""
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    rows, notes = results["models"], Notes()
    parts = [INTRODUCTION, f"Measured with {versions}, on the CPU in float32.\n", *_summary(rows), ""]
    if results["missing"]:
        parts.append(f"Not measured yet: {', '.join(f'`{name}`' for name in results['missing'])}.\n")
    for package, name in NAMES.items():
        header = ["model", "parameters", "BatchNorm", "others", *OPERATIONS.values(), "`undo`"]
        table = [header, *(_row(row, notes) for row in rows if row["package"] == package)]
        parts += [f"## {name}\n", *markdown_table(table), ""]
    return "\n".join([*parts, "## Reasons\n", *notes.lines(), ""])


def interop_counts(results: dict[str, Any]) -> str:
    """Return a sentence with the number of models per package and of failures, for docs/guide/surgery.md."""
    rows = results["models"]
    counts = [f"{sum(1 for row in rows if row['package'] == package)} of {name}" for package, name in NAMES.items()]
    failures = [name for row in rows for name, outcome in row.get("operations", {}).items() if outcome["result"] == "failed"]
    total = sum(len(row.get("operations", {})) for row in rows)
    failed = len(failures) or "None"
    return (
        f"These operations are tested on {len(rows)} models, {', '.join(counts[:-1])} and {counts[-1]}:\n"
        f"[the table](../interop.md) has the result of each. {failed} of the {total} operations failed; those that were refused\n"
        "are marked –."
    )


def _summary(rows: list[dict[str, Any]]) -> list[str]:
    """Return a table with one row per package: the number of models, with BatchNorm, and changed by each operation."""
    table = [["package", "models", "with BatchNorm", *OPERATIONS.values(), "BatchNorms folded"]]
    for package, name in NAMES.items():
        of_package = [row for row in rows if row["package"] == package]
        with_bn = [row for row in of_package if row.get("batch_norms")]
        passed = [sum(1 for row in of_package if row.get("operations", {}).get(key, {}).get("count")) for key in OPERATIONS]
        folded = sum(row["operations"]["fold"].get("count", 0) for row in with_bn)
        counts = [len(of_package), len(with_bn), *passed]
        table.append([name, *map(str, counts), f"{folded} of {sum(row['batch_norms'] for row in with_bn)}"])
    return ["Models that an operation changes as it should:\n", *markdown_table(table)]


def _row(row: dict[str, Any], notes: Notes) -> list[str]:
    if "error" in row:
        return [f"`{row['name']}`", f"the model itself does not run{notes.refer([row['error']])}", *[""] * (len(OPERATIONS) + 3)]
    others = row["norms"] - row["batch_norms"]
    size = f" ({' × '.join(map(str, row['input']))})" if row["input"] != USUAL_INPUT else ""
    cells = [f"`{row['name']}`{size}", f"{row['parameters'] / 1e6:.1f} M", str(row["batch_norms"])]
    cells.append(f"{others}{notes.refer(list(row['unsupported']))}")
    outcomes = row["operations"]
    not_run = {note: number for note, number in outcomes["fold"].get("notes", {}).items() if NOT_RUN in note}
    for key in OPERATIONS:
        outcome = outcomes.get(key, {})
        if key == "recalibrate" and outcome.get("count", 0) + sum(not_run.values()) == row["batch_norms"]:
            outcome = outcome | {"notes": not_run}  # it has no batch for a norm that does not run
        cells.append(_cell(key, outcome, row["batch_norms"], notes))
    undo_fails = any(outcome.get("reason", "").startswith("undo left") for outcome in outcomes.values())
    passes = any(outcome["result"] == "passed" for outcome in outcomes.values())
    return [*cells, "**✗**" if undo_fails else "✓" if passes else ""]


def _cell(operation: str, outcome: dict[str, Any], batch_norms: int, notes: Notes) -> str:
    if not outcome:
        return ""
    if outcome["result"] != "passed":
        return f"{'–' if outcome['result'] == 'refused' else '**✗**'}{notes.refer([outcome['reason']])}"
    count = outcome["count"]
    if operation in TOTALS:
        return f"{count} of {outcome[TOTALS[operation]]}{notes.refer(list(outcome.get('notes', {})))}"
    if operation == "xbn":
        return str(count) if count == outcome["blocks"] else f"{count} of {outcome['blocks']}"
    if count == batch_norms and batch_norms:
        return "✓"
    reasons = [note for note in outcome.get("notes", {}) if "come from each input" not in note]  # reasons of other norms
    return f"{count} of {batch_norms}{notes.refer(reasons)}" if batch_norms else str(count)


if __name__ == "__main__":
    measured = json.loads(RESULTS.read_text())
    PAGE.write_text(interop_page(measured))
    GUIDE.write_text(insert(interop_counts(measured), GUIDE.read_text(), MARKER))
    sys.stdout.write("Wrote docs/interop.md and the counts in docs/guide/surgery.md.\n")
