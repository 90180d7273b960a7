"""Time norms with the addition and ReLU after them against nn.BatchNorm2d and separate operations, forward + backward.

    python benchmarks/fused.py [--minutes 4] [--threads 1,2] [--no-compile] [--json out.json]

    norm + ReLU           relu(norm(x))
    norm + add + ReLU     relu(norm(x) + residual), with the gradient of the residual

Ours are one call of the layer; torch's are nn.BatchNorm2d, + and nn.ReLU. With torch.compile, both sides are compiled. The bytes
that norm + ReLU saves for backward are counted too. All candidates are timed alternately; the result is the minimum time of each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measurement import best_times, condition_of, saved_bytes, write_results
from sections import fused_section
from torch import Tensor, nn

import anynorm
from anynorm.progress import track

KINDS = ("norm + ReLU", "norm + add + ReLU")
SPECS = ["bn", "in", "ln", "gn:32", "en", "bgn:32", "hn", "hn:32", "sn", "sabn@10"]
SHAPES = (
    (8, 64, 56, 56),
    (8, 256, 56, 56),
    (8, 128, 28, 28),
    (8, 256, 14, 14),
    (8, 512, 7, 7),
    (32, 64, 56, 56),
    (32, 256, 14, 14),
    (128, 32, 16, 16),
)
COMPILED_SPECS = ["bn", "gn:32", "hn:32", "sn"]
COMPILED_SHAPES = ((8, 64, 56, 56), (8, 256, 14, 14))


class TorchBlock(nn.Module):
    """nn.BatchNorm2d, the addition of a residual, and nn.ReLU as separate operations."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.relu = nn.BatchNorm2d(channels), nn.ReLU()

    def forward(self, x: Tensor, *, residual: Tensor | None = None) -> Tensor:
        """Normalize x, add the residual and apply ReLU."""
        y = self.norm(x)
        result: Tensor = self.relu(y if residual is None else y + residual)
        return result


def blocks(channels: int, specs: list[str]) -> dict[str, nn.Module]:
    """Return torch's block and our layers with ReLU, by name."""
    ours = {spec: anynorm.make(spec, channels, activation="relu") for spec in specs}
    return {"torch": TorchBlock(channels), **ours}


def step(module: nn.Module, x: Tensor, dy: Tensor, residual: Tensor | None) -> Callable[[], object]:
    """Return a function that runs forward and backward of a module with the same arguments."""
    condition = condition_of(module)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    inputs = [x, *([] if residual is None else [residual]), *trained]
    options = {} if residual is None else {"residual": residual}
    return lambda: torch.autograd.grad(module(x, *condition, **options), inputs, dy, allow_unused=True)


def measure(shape: tuple[int, ...], threads: int, seconds: float) -> dict[str, Any]:
    """Time both kinds at one shape, and count the bytes saved for backward."""
    torch.set_num_threads(threads)
    x, dy, residual = (torch.randn(shape) for _ in range(3))
    size = x.numel() * x.element_size()
    modules = blocks(shape[1], SPECS)
    row: dict[str, Any] = {"shape": list(shape), "threads": threads, "megabytes": size / 1e6, "seconds": {}}
    row["saved"] = {spec: saved_bytes(modules[spec], x, *condition_of(modules[spec])) / size for spec in SPECS}
    x, residual = x.requires_grad_(), residual.requires_grad_()
    for kind, added in zip(KINDS, (None, residual), strict=True):
        calls = {name: step(module, x, dy, added) for name, module in modules.items()}
        row["seconds"][kind] = best_times(calls, seconds / len(KINDS))
    return row


def measure_compiled(shape: tuple[int, ...], threads: int, seconds: float) -> dict[str, Any]:
    """Time norm + ReLU under torch.compile at one shape."""
    torch.set_num_threads(threads)
    torch._dynamo.reset()
    x, dy = torch.randn(shape, requires_grad=True), torch.randn(shape)
    modules = blocks(shape[1], COMPILED_SPECS)
    calls = {}
    for name, module in modules.items():
        calls[name] = step(module, x, dy, residual=None)
        module.compile(dynamic=False)
    return {"shape": list(shape), "threads": threads, "seconds": {KINDS[0]: best_times(calls, seconds)}}


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4.0, help="time for measuring, without compilation (default: 4)")
    parser.add_argument("--threads", default="1,2", help="comma-separated numbers of threads (default: 1,2)")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out (compiling takes minutes)")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.threads.split(",")]
    cells = [(shape, threads) for threads in counts for shape in SHAPES]
    compiled_cells = [] if arguments.no_compile else [(shape, threads) for threads in counts for shape in COMPILED_SHAPES]
    seconds = arguments.minutes * 60 / (len(cells) + len(compiled_cells))
    rows = [measure(*cell, seconds) for cell in track(cells, "timing blocks")]
    compiled = [measure_compiled(*cell, seconds) for cell in track(compiled_cells, "compiling and timing")]
    results = {"specs": SPECS, "rows": rows, "compiled": compiled}
    print(fused_section(results))
    write_results(arguments.json, results)


if __name__ == "__main__":
    main()
