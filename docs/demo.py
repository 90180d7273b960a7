"""Draw what `make demo` found, and keep it as a record: `python docs/demo.py` after `make demo`."""

import json
import statistics
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from anynorm import plot
from anynorm.comparison import Plan, outcomes, summary

HERE = Path(__file__).parent


def averaged(records: list[dict[str, Any]], rows: str, place: str, value: str) -> list[dict[str, float]]:
    """Give the mean over runs of a value at each place."""
    found: dict[float, list[float]] = {}
    for record in records:
        for row in record[rows] or []:
            found.setdefault(row[place], []).append(row[value])
    return [{"layer": at, value: statistics.fmean(values)} for at, values in sorted(found.items())]


def main() -> None:
    """Write docs/demo.json and docs/demo.png."""
    plan = Plan(root=HERE.parent / "runs" / "demo")
    found = outcomes(plan)
    report = summary(plan)
    small = min(plan.batch_sizes)
    trained = {f"{norm}, batch {size}": [record["train_error"] for record in records] for (norm, size), records in found.items()}
    made: dict[str, Any] = {"command": "make demo", "rows": report.rows, "finding": report.finding}
    made |= {"train_errors": trained, "seeds": plan.seeds, "provenance": found[plan.norms[0], small][0]["provenance"]}
    (HERE / "demo.json").write_text(json.dumps(made, indent=2) + "\n")
    fig = Figure(figsize=(11, 3.8), layout="constrained")
    left, right = fig.subplots(1, 2)
    cells = {norm: found[norm, small] for norm in plan.norms}
    plot.profiles(
        {norm: averaged(records, "curve", "epoch", "test_error") for norm, records in cells.items()}, "test_error", left
    )
    left.set(xlabel="epoch", ylabel="test error (%)", ylim=(0, 100), title=f"Digits, 20-layer MLP, batch {small}")
    plot.profiles({norm: averaged(records, "shift", "place", "shift") for norm, records in cells.items()}, "shift", right)
    right.set(
        xlabel="norm, from the first",
        ylabel="estimation shift (0 is right)",
        title="How far what norms keep is from what they meet",
    )
    fig.savefig(HERE / "demo.png", dpi=110)


if __name__ == "__main__":
    main()
