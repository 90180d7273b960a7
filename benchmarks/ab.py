"""Compare the time of layers between two checkouts, such as before and after a change.

    python benchmarks/ab.py BEFORE AFTER [--minutes 10] [--specs bn,sn] [--tolerance 0.02] [--json out.json]

Each checkout is a folder with built kernels (`python setup.py build_ext --inplace`). It runs in a process of its own, on one
thread. Both processes measure the same layer directly after each other, in random order, for many rounds; a round gives the
minimum CPU time of a call. A layer is slower if both the ratio of the minima over all rounds and the median of the ratios of the
rounds exceed 1 + tolerance. With the same folder twice, the ratios show the noise of the machine. The exit code is 1 if a layer
is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

SPECS = ("bn", "in", "ln", "gn:32", "hn:32", "sn", "bgn:32", "sabn@10", "auxbn@2")
SHAPES = ((64, 128), (64, 128, 1, 1), (4, 64, 8, 8), (8, 64, 32), (8, 256, 14, 14), (4, 64, 56, 56))
MODES = ("inference", "training")
ROUND_SECONDS = 0.01
FEW_CALLS = 5


class Case(NamedTuple):
    """A layer to time."""

    spec: str
    shape: tuple[int, ...]
    mode: str

    def __str__(self) -> str:
        return f"{self.spec}, {'x'.join(map(str, self.shape))}, {self.mode}"


def cases(specs: tuple[str, ...]) -> list[Case]:
    """Return all layers, without those that need more than one position."""
    every = [Case(*each) for each in product(specs, SHAPES, MODES)]
    return [case for case in every if case.spec not in ("in", "gn:32") or case.shape[2:] not in ((), (1, 1))]


# In the process of a checkout: only names that every version of anynorm has.


def make_call(case: Case) -> Callable[[], object]:
    """Return a function that runs a layer once."""
    import torch

    import anynorm

    torch.manual_seed(0)
    norm, x = anynorm.make(case.spec, case.shape[1]), torch.randn(case.shape)
    condition = [torch.arange(len(x)) % 2] if "@" in case.spec else []
    if case.mode == "inference":
        norm.eval()

        def infer() -> None:
            with torch.no_grad():
                norm(x, *condition)

        return infer
    dy = torch.randn(case.shape)
    x.requires_grad_()

    def train() -> None:
        norm(x, *condition).backward(dy)
        x.grad = None

    return train


def best_time(call: Callable[[], object], seconds: float) -> float:
    """Return the minimum CPU time of a call, over several batches of calls that take `seconds` together."""
    best, num_calls, end = float("inf"), 1, time.perf_counter() + seconds
    while time.perf_counter() < end or num_calls < FEW_CALLS:
        start = time.process_time()
        for _ in range(num_calls):
            call()
        elapsed = time.process_time() - start
        best = min(best, elapsed / num_calls)
        if elapsed >= seconds / FEW_CALLS:
            if num_calls < FEW_CALLS and time.perf_counter() >= end:
                break
        else:
            num_calls *= 2
    return best


def work() -> None:
    """Answer requests, one JSON line each: a case and a time in seconds; the answer is the minimum time of a call."""
    import torch

    import anynorm
    from anynorm import kernels

    torch.set_num_threads(1)
    calls: dict[Case, Callable[[], object]] = {}
    print(json.dumps({"file": anynorm.__file__, "kernels": kernels.describe()}), flush=True)
    for line in sys.stdin:
        (spec, shape, mode), seconds = json.loads(line)
        case = Case(spec, tuple(shape), mode)
        if case not in calls:
            calls[case] = make_call(case)
            calls[case]()
        print(json.dumps(best_time(calls[case], seconds)), flush=True)


class Worker:
    """The process of a checkout."""

    def __init__(self, folder: Path) -> None:
        environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).resolve()), "--worker"]
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started = self._read()
        if not Path(started["file"]).is_relative_to(folder):
            raise SystemExit(f"{folder} is not a checkout of anynorm: imported {started['file']}.")
        self.kernels: str = started["kernels"]

    def measure(self, case: Case, seconds: float) -> float:
        """Return the minimum time of a case."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([case, seconds]) + "\n")
        self.process.stdin.flush()
        return float(self._read())

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"The process of a checkout ended with code {self.process.wait()}; its error is above.")
        return json.loads(line)


def compare(before: list[float], after: list[float]) -> tuple[float, float]:
    """Return the ratio of the minima, and the median of the ratios of the rounds."""
    return min(after) / min(before), statistics.median(new / old for old, new in zip(before, after, strict=True))


def main() -> None:
    """Measure all cases, and print one line per case and a summary."""
    if "--worker" in sys.argv:
        work()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="checkout before the change")
    parser.add_argument("after", type=Path, help="checkout after the change")
    parser.add_argument("--minutes", type=float, default=10.0, help="time for measuring (default: 10)")
    parser.add_argument("--specs", default=",".join(SPECS), help=f"comma-separated specs (default: {','.join(SPECS)})")
    parser.add_argument("--tolerance", type=float, default=0.02, help="share of additional time that is allowed (default: 0.02)")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    arguments = parser.parse_args()
    every = cases(tuple(arguments.specs.split(",")))
    workers = [Worker(folder.resolve()) for folder in (arguments.before, arguments.after)]
    for worker in workers:
        print(worker.kernels)
    times: dict[Case, tuple[list[float], list[float]]] = {case: ([], []) for case in every}
    end, rounds = time.perf_counter() + 60 * arguments.minutes, 0
    while rounds < 3 or time.perf_counter() < end:
        for case in random.sample(every, len(every)):
            for index in random.sample((0, 1), 2):
                times[case][index].append(workers[index].measure(case, ROUND_SECONDS))
        rounds += 1
    ratios = {case: compare(*pair) for case, pair in times.items()}
    slower = [case for case, pair in ratios.items() if min(pair) > 1 + arguments.tolerance]
    print(f"{'layer':36} before (µs)  after (µs)  ratio of minima  median ratio")
    for case, (best, median) in ratios.items():
        old, new = (1e6 * min(values) for values in times[case])
        print(f"{case!s:36} {old:11.1f} {new:11.1f} {best:16.3f} {median:13.3f}{'  slower' if case in slower else ''}")
    overall = [statistics.median(column) for column in zip(*ratios.values(), strict=True)]
    print(
        f"{len(slower)} of {len(every)} layers are slower by more than {100 * arguments.tolerance:g} %, in {rounds} rounds; "
        f"medians over all layers: {overall[0]:.3f} (minima), {overall[1]:.3f} (rounds)."
    )
    if arguments.json:
        rows = [{"case": str(case), "before": pair[0], "after": pair[1]} for case, pair in times.items()]
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    raise SystemExit(1 if slower else 0)


if __name__ == "__main__":
    main()
