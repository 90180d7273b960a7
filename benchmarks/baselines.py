"""Time the baselines outside the algebra against nn.BatchNorm2d, forward + backward, and count the bytes saved for backward.

    python benchmarks/baselines.py [--rounds 40] [--specs brn,ibn]

All layers take turns in every round, on one thread. Times are the best of all rounds, relative to nn.BatchNorm2d; bytes are
relative to those of x.
"""

from __future__ import annotations

import argparse
import platform
import time
import weakref

import torch
from torch import Tensor, nn

import anynorm

SPECS = ("bn", "sn", "brn", "modenorm:2", "modenorm:8", "ilmin", "ilmgn:8", "ssn", "ibn", "gw:8", "gwzca:8", "gw:64", "gwzca:64")
SHAPES = ((32, 64, 32, 32), (4, 64, 32, 32), (32, 256, 8, 8))


class SavedTensor:
    """A tensor saved for backward; it lives as long as autograd needs it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def saved_bytes(norm: nn.Module, x: Tensor) -> int:
    """Return the number of bytes saved for backward: each storage once, without parameters."""
    alive: weakref.WeakSet[SavedTensor] = weakref.WeakSet()

    def pack(tensor: Tensor) -> SavedTensor:
        saved = SavedTensor(tensor)
        alive.add(saved)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        y = norm(x)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in norm.parameters()}
    storages = [saved.tensor.untyped_storage() for saved in alive]  # read while y, and so its graph, is alive
    del y
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages if storage.data_ptr() not in parameters}.values())


def best_times(norms: dict[str, nn.Module], x: Tensor, dy: Tensor, rounds: int) -> dict[str, float]:
    """Return the best time of forward + backward of each norm, in seconds."""
    best = dict.fromkeys(norms, float("inf"))
    for _ in range(rounds):
        for name, norm in norms.items():
            start = time.perf_counter()
            norm(x).backward(dy)
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    """Print a Markdown table with one row per norm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="number of rounds (default: 40)")
    parser.add_argument("--specs", default=",".join(SPECS), help="comma-separated norms (default: all baselines)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table: dict[str, list[str]] = {}
    for shape in SHAPES:
        x, dy = torch.randn(shape).requires_grad_(), torch.randn(shape)
        norms: dict[str, nn.Module] = {"nn.BatchNorm2d": nn.BatchNorm2d(shape[1])}
        norms |= {spec: anynorm.make(spec, shape[1]) for spec in arguments.specs.split(",")}
        best = best_times(norms, x, dy, arguments.rounds)
        for name, norm in norms.items():
            saved = saved_bytes(norm, x) / (x.numel() * x.element_size())
            table.setdefault(name, []).append(f"{best[name] / best['nn.BatchNorm2d']:.2f} ({saved:.1f} x)")
    hardware = platform.processor() or platform.machine()
    print(f"torch {torch.__version__}, {hardware}, one thread, best of {arguments.rounds} interleaved rounds\n")
    print("| norm | " + " | ".join("×".join(map(str, shape)) for shape in SHAPES) + " |")
    print("|---" * (1 + len(SHAPES)) + "|")
    for name, cells in table.items():
        print(f"| `{name}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
