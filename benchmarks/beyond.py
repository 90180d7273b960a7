"""Time the norms beyond the algebra against nn.BatchNorm2d, forward and backward, interleaved; and count what they keep.

    python benchmarks/beyond.py

Times are the best of many rounds in which each has its turn, as ratios to nn.BatchNorm2d; bytes kept are ratios to those of x.
"""

from __future__ import annotations

import platform
import time
import weakref

import torch
from torch import Tensor, nn

import anynorm

SPECS = ("bn", "sn", "brn", "modenorm:2", "modenorm:8", "ilmin", "ilmgn:8", "ssn", "ibn", "gw:8", "gwzca:8", "gw:64", "gwzca:64")
SHAPES = ((32, 64, 32, 32), (4, 64, 32, 32), (32, 256, 8, 8))
ROUNDS = 40


def step(norm: nn.Module, x: Tensor, dy: Tensor) -> None:
    """Go forwards and backwards once."""
    norm(x).backward(dy)


class Held:
    """A tensor that autograd keeps, as long as it does."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def kept(norm: nn.Module, x: Tensor) -> int:
    """Count the bytes kept for backward, each tensor once, parameters left out."""
    alive: weakref.WeakSet[Held] = weakref.WeakSet()

    def pack(tensor: Tensor) -> Held:
        held = Held(tensor)
        alive.add(held)
        return held

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
        y = norm(x)
    own = {parameter.untyped_storage().data_ptr() for parameter in norm.parameters()}
    storages = [held.tensor.untyped_storage() for held in alive]  # of what is alive while y is
    del y
    return sum({one.data_ptr(): one.nbytes() for one in storages if one.data_ptr() not in own}.values())


def main() -> None:
    """Print a row a norm."""
    torch.set_num_threads(1)
    table: dict[str, list[str]] = {}
    for shape in SHAPES:
        x, dy = torch.randn(shape).requires_grad_(), torch.randn(shape)
        norms: dict[str, nn.Module] = {"nn.BatchNorm2d": nn.BatchNorm2d(shape[1])}
        norms |= {spec: anynorm.make(spec, shape[1]) for spec in SPECS}
        best = dict.fromkeys(norms, float("inf"))
        for _ in range(ROUNDS):
            for name, norm in norms.items():
                began = time.perf_counter()
                step(norm, x, dy)
                best[name] = min(best[name], time.perf_counter() - began)
        for name, norm in norms.items():
            ratio = kept(norm, x) / (x.numel() * x.element_size())
            table.setdefault(name, []).append(f"{best[name] / best['nn.BatchNorm2d']:.2f} ({ratio:.1f} x)")
    hardware = platform.processor() or platform.machine()
    print(f"torch {torch.__version__}, {hardware}, one thread, best of {ROUNDS} interleaved rounds\n")
    print("| norm | " + " | ".join("×".join(map(str, shape)) for shape in SHAPES) + " |")
    print("|---" * (1 + len(SHAPES)) + "|")
    for name, cells in table.items():
        print(f"| `{name}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
