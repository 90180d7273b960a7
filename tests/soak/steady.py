"""Watch memory, file descriptors and threads over many training steps with changing shapes: `python -m tests.soak.steady`.

Layers of many kinds train in turn on random shapes, layouts and dtypes. In the first steps, which are not counted, caches fill up
(4096 plans of passes, 64 validated shapes per layer and mode), and then they must stay bounded. The growth is the difference
between the medians of the last and of the first fifth of the steps.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
from pathlib import Path

import torch

import anynorm
from tests.helpers import condition_for
from tests.soak.result import write_result

SPECS = ("bn", "gn:4", "hn:4", "sn", "pn", "bgn:2", "sabn@3", "bn.aux@3", "adain", "rms", "brn", "gw:4", "modenorm:2")
MAX_GROWTH = 2.0
"""Largest growth of the memory of the process in MB, 100 bytes per step: with full caches, it goes up and down by 1.2 MB."""


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.steady", description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000, help="number of training steps (default: 20000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="add the result to this file")
    parser.add_argument("--warm-up", type=int, default=30_000, help="number of steps before (default: 30000)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    growth = watch(arguments.steps, arguments.warm_up, arguments.seed)
    print(f"{arguments.steps} steps: " + ", ".join(f"{name} {value:+.2f}" for name, value in growth.items()))
    result = {
        "steps": arguments.steps,
        "warm_up": arguments.warm_up,
        "seed": arguments.seed,
        "growth": {k: round(v, 3) for k, v in growth.items()},
    }
    write_result(arguments.json, "steady", result)
    return int(growth["memory in MB"] > MAX_GROWTH or growth["file descriptors"] > 0 or growth["threads"] > 0)


def watch(steps: int, warm_up: int, seed: int = 0) -> dict[str, float]:
    """Train for a number of steps, and return the growth of memory, file descriptors and threads."""
    generator = random.Random(seed)
    layers = [anynorm.make(spec, 16, activation=name) for spec in SPECS for name in (None, "relu")]
    samples = []
    for number in range(-warm_up, steps):
        step(layers[number % len(layers)], generator)
        if number >= 0 and number % max(1, steps // 500) == 0:
            samples.append((memory(), count("/proc/self/fd"), count("/proc/self/task")))
    fifth = len(samples) // 5
    ends = (samples[:fifth], samples[-fifth:])
    names = ("memory in MB", "file descriptors", "threads")
    return {
        name: statistics.median(s[i] for s in ends[1]) - statistics.median(s[i] for s in ends[0]) for i, name in enumerate(names)
    }


def step(layer: anynorm.Norm, generator: random.Random) -> None:
    """One training step of a layer on an input of random shape."""
    space = [generator.randint(2, 24) for _ in range(generator.randint(1, 2))]
    x = torch.randn(generator.randint(2, 8), 16, *space)
    if generator.random() < 0.3:
        x = x.bfloat16()
    if x.dim() == 4 and generator.random() < 0.4:
        x = x.to(memory_format=torch.channels_last)
    residual = torch.randn_like(x) if generator.random() < 0.3 else None
    condition = condition_for(layer, x)
    layer.train(generator.random() < 0.8)
    layer(x.requires_grad_(), condition, residual=residual).float().square().sum().backward()
    layer.zero_grad()


def memory() -> float:
    """Return the memory of the process in MB, of the pages in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def count(folder: str) -> int:
    """Return the number of entries of a folder: file descriptors and threads of this process."""
    return sum(1 for _ in Path(folder).iterdir())


if __name__ == "__main__":
    sys.exit(main())
