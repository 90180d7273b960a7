"""Time norms with a mask relative to the same norm without one, for padded sequences.

    python benchmarks/masks.py [--minutes 2] [--kernels auto]

8 sequences of 64 channels are padded to 512 positions with 35 % padding, in contiguous memory and channels last. A mask of
lengths hides the end of each sequence, a random mask the same share of positions anywhere. Forward and backward on one thread;
minimum CPU times, all candidates in turn. Only ratios within one run are meaningful.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import process_time

import torch
from measurement import best_times
from torch import Tensor

import anynorm
from anynorm import kernels

SHAPE, SHARE = (8, 64, 512), 0.65
SPECS = ("bn", "in", "sn")


def make_call(spec: str, x: Tensor, mask: Tensor | None) -> Callable[[], object]:
    """Return a function that runs a norm forward and backward."""
    norm, leaf, dy = anynorm.make(spec, SHAPE[1]), x.clone().requires_grad_(), torch.randn_like(x)

    def run() -> None:
        norm(leaf, mask=mask).backward(dy)
        leaf.grad = None

    return run


def main() -> None:
    """Measure, and print one line per memory format and mask."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0, help="time for measuring (default: 2)")
    parser.add_argument("--kernels", default="auto", help="auto or reference (default: auto)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    n, c, length = SHAPE
    lengths = torch.linspace(2 * SHARE - 1, 1, n).mul(length).long()
    x, random = torch.randn(n, c, 1, length), torch.rand(n, 1, length) < SHARE
    prefix = torch.arange(length) < lengths[:, None, None]
    inputs = {"contiguous": x, "channels last": x.to(memory_format=torch.channels_last)}
    masks = {"none": None, "lengths": prefix, "random": random}
    calls = {
        f"{layout}, {name}, {spec}": make_call(spec, data, mask)
        for layout, data in inputs.items()
        for name, mask in masks.items()
        for spec in SPECS
    }
    with kernels.use(arguments.kernels):
        times = best_times(calls, 60 * arguments.minutes, clock=process_time)
    print(f"{f'{float(1 - prefix.float().mean()):.0%} padding':36}" + "".join(f"{spec:>8}" for spec in SPECS))
    for layout in inputs:
        for name in ("lengths", "random"):
            ratios = [times[f"{layout}, {name}, {spec}"] / times[f"{layout}, none, {spec}"] for spec in SPECS]
            print(f"{layout + ', ' + name:36}" + "".join(f"{ratio:8.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
