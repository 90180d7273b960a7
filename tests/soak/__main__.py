"""Run random passes for a number of minutes, or one draw again: `python -m tests.soak --minutes 30 --json soak.json`.

A second run with the same file, seed and commit goes on with the next pass, and adds to the result.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from tests.kernels.interpreter import fast_interpreter
from tests.soak.compare import run
from tests.soak.generate import draw
from tests.soak.result import read_result, write_result

TRITON_EVERY = 12
"""Of so many draws, one runs in Triton's interpreter too, which is slow."""


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="time to run (default: 30)")
    parser.add_argument("--passes", type=int, help="number of compared passes after which to stop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="run this draw only")
    parser.add_argument("--json", type=Path, help="add the result to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    np.seterr(all="ignore")  # Triton's interpreter computes in numpy
    with fast_interpreter():
        if arguments.case is not None:
            return run_one(arguments.seed, arguments.case)
        return run_many(arguments.minutes, arguments.passes, arguments.seed, arguments.json)


def run_one(seed: int, number: int) -> int:
    """Run one draw on all kernels and print what is wrong."""
    case = draw(seed, number)
    print(case)
    outcomes = run(case, with_triton=True)
    for outcome in outcomes:
        print(f"{outcome.backend} against {outcome.definition}: {'; '.join(outcome.problems) or 'equal'}")
    return int(any(outcome.problems for outcome in outcomes))


def run_many(minutes: float, passes: int | None, seed: int, path: Path | None) -> int:
    """Run draws until the time or the number of passes is over; print one line per failure."""
    start = time.monotonic()
    before: dict[str, Any] = read_result(path, "passes", seed)
    number, failures, spent = before.get("draws", 0), before.get("differ", 0), before.get("minutes", 0.0)
    counts: Counter[str] = Counter(before.get("by_kernels", {}))

    def save() -> float:
        total: float = spent + (time.monotonic() - start) / 60
        kinds = dict(sorted(counts.items()))
        result = {"passes": counts.total(), "differ": failures, "draws": number, "seed": seed, "by_kernels": kinds}
        write_result(path, "passes", {**result, "minutes": round(total, 1)})
        return total

    while time.monotonic() - start < 60 * minutes and not (passes and counts.total() >= passes):
        case = draw(seed, number)
        for outcome in run(case, with_triton=number % TRITON_EVERY == 0):
            counts[f"{outcome.backend} against {outcome.definition}"] += 1
            if outcome.problems:
                failures += 1
                print(f"{case.command}  # {outcome.backend}: {case}: {'; '.join(outcome.problems)}", flush=True)
        number += 1
        if number % 2000 == 0:
            save()
            print(f"{counts.total()} passes compared, {failures} differ", file=sys.stderr, flush=True)
    print(f"{counts.total()} passes compared in {save():.1f} minutes: {failures} differ.")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
