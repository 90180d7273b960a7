"""Time the baselines outside the algebra against nn.BatchNorm2d, forward + backward, and count the bytes saved for backward.

    python benchmarks/baselines.py [--minutes 1] [--specs brn,ibn] [--json out.json]

All layers are timed alternately, on one thread. Times are the minimum over all rounds, relative to nn.BatchNorm2d; bytes are
relative to the bytes of x.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from candidates import MODES, step
from measurement import best_times, saved_bytes, write_results
from sections import baselines_section
from torch import nn

import anynorm

SPECS = ("bn", "sn", "brn", "modenorm:2", "modenorm:8", "ilmin", "ilmgn:8", "ssn", "ibn", "gw:8", "gwzca:8", "gw:64", "gwzca:64")
BASE = "nn.BatchNorm2d"
SHAPES = ((32, 64, 32, 32), (4, 64, 32, 32), (32, 256, 8, 8))


def measure(shape: tuple[int, ...], specs: list[str], seconds: float) -> dict[str, tuple[float, float]]:
    """Return the time of each norm relative to nn.BatchNorm2d, and the bytes saved for backward relative to the bytes of x."""
    x, dy = torch.randn(shape).requires_grad_(), torch.randn(shape)
    norms: dict[str, nn.Module] = {BASE: nn.BatchNorm2d(shape[1])} | {spec: anynorm.make(spec, shape[1]) for spec in specs}
    calls = {name: step(norm, x, dy, MODES[2]) for name, norm in norms.items()}
    times = best_times(calls, seconds)
    size = x.numel() * x.element_size()
    return {name: (times[name] / times[BASE], saved_bytes(norm, x) / size) for name, norm in norms.items()}


def main() -> None:
    """Measure, and print a table with one row per norm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="time for the complete run (default: 1)")
    parser.add_argument("--specs", default=",".join(SPECS), help="comma-separated norms (default: all baselines)")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    by_shape = [measure(shape, arguments.specs.split(","), 60 * arguments.minutes / len(SHAPES)) for shape in SHAPES]
    rows = []
    for name in by_shape[0]:
        ratios, saved = zip(*(measured[name] for measured in by_shape), strict=True)
        rows.append({"norm": name, "ratios": ratios, "saved": saved})
    results = {"shapes": [list(shape) for shape in SHAPES], "rows": rows}
    print(baselines_section(results))
    write_results(arguments.json, results)


if __name__ == "__main__":
    main()
