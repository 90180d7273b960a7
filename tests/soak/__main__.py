"""Run random passes for a number of minutes, or one pass again: `python -m tests.soak --minutes 30 --json soak.json`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from anynorm.lab.training.provenance import provenance
from tests.kernels.interpreter import fast_interpreter
from tests.soak.compare import run
from tests.soak.generate import draw

TRITON_EVERY = 12
"""Of so many passes, one runs in Triton's interpreter too, which is slow."""


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="time to run (default: 30)")
    parser.add_argument("--cases", type=int, help="number of compared passes after which to stop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first pass")
    parser.add_argument("--case", type=int, help="run this pass only")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    np.seterr(all="ignore")  # Triton's interpreter computes in numpy
    with fast_interpreter():
        if arguments.case is not None:
            return run_one(arguments.seed, arguments.case)
        return run_many(arguments)


def run_one(seed: int, number: int) -> int:
    """Run one pass on all kernels and print what is wrong."""
    case = draw(seed, number)
    print(case)
    outcomes = run(case, with_triton=True)
    for outcome in outcomes:
        print(f"{outcome.backend} against {outcome.definition}: {'; '.join(outcome.problems) or 'equal'}")
    return int(any(outcome.problems for outcome in outcomes))


def run_many(arguments: argparse.Namespace) -> int:
    """Run passes until the time or the number of cases is over; print one line per failure."""
    start, number, failures = time.monotonic(), arguments.start, 0
    counts: Counter[str] = Counter()
    while time.monotonic() - start < 60 * arguments.minutes and not (arguments.cases and counts.total() >= arguments.cases):
        case = draw(arguments.seed, number)
        for outcome in run(case, with_triton=number % TRITON_EVERY == 0):
            counts[f"{outcome.backend} against {outcome.definition}"] += 1
            if outcome.problems:
                failures += 1
                print(f"{case.command}  # {outcome.backend}: {case}: {'; '.join(outcome.problems)}", flush=True)
        number += 1
        if number % 5000 == 0:
            print(f"{counts.total()} passes compared, {failures} differ", file=sys.stderr, flush=True)
    print(f"{counts.total()} passes compared in {(time.monotonic() - start) / 60:.1f} minutes: {failures} differ.")
    if arguments.json:
        result = {
            "passes": counts.total(),
            "differ": failures,
            "drawn": number - arguments.start,
            "seed": arguments.seed,
            "start": arguments.start,
            "by_kernels": dict(sorted(counts.items())),
            "minutes": round((time.monotonic() - start) / 60, 1),
            **provenance(),
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
