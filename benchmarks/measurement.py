"""How the benchmarks measure time and saved memory, and the file that each of them writes.

Candidates take turns and the best time of each counts: the machine is shared, so that only ratios within one run are meaningful.
"""

from __future__ import annotations

import json
import random
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anynorm import kernels
from anynorm.training.provenance import provenance


def best_times(
    calls: Mapping[str, Callable[[], object]],
    seconds: float,
    min_rounds: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the best time of each call in seconds; calls take turns, in another order in each round.

    Args:
        calls: the functions to time, by name.
        seconds: start new rounds for this long.
        min_rounds: the number of rounds, if `seconds` are over before.
        clock: what is measured; `time.process_time` for the CPU time of one thread, which other processes disturb less.
    """
    for call in calls.values():
        call()
    times = dict.fromkeys(calls, float("inf"))
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < min_rounds or time.perf_counter() < end:
        for name, call in random.sample(sorted(calls.items()), len(calls)):
            start = clock()
            call()
            times[name] = min(times[name], clock() - start)
        rounds += 1
    return times


class SavedTensor:
    """A tensor saved for backward; it lives as long as autograd needs it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def saved_bytes(module: nn.Module, x: Tensor, *condition: object) -> int:
    """Return the number of bytes saved for backward: each storage once, without parameters and buffers."""
    alive: weakref.WeakSet[SavedTensor] = weakref.WeakSet()

    def pack(tensor: Tensor) -> SavedTensor:
        saved = SavedTensor(tensor)
        alive.add(saved)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        y = module(x.detach().requires_grad_(), *condition)
    state = {tensor.untyped_storage().data_ptr() for tensor in [*module.parameters(), *module.buffers()]}
    storages = [saved.tensor.untyped_storage() for saved in alive]  # read while y, and so its graph, is alive
    sizes = {storage.data_ptr(): storage.nbytes() for storage in storages if storage.data_ptr() not in state}
    del y
    return sum(sizes.values())


def condition_of(module: nn.Module) -> list[int]:
    """Return the condition to call a module with: class or domain 0, or nothing."""
    return [0] if getattr(module, "takes_condition", False) else []


def environment() -> dict[str, Any]:
    """Return what the numbers depend on: the command, processor, cores, versions of Python and torch, and the kernels."""
    source = provenance()
    script = f"python benchmarks/{Path(sys.argv[0]).name}"
    return {
        "command": " ".join([script, *_options(sys.argv[1:])]),
        "hardware": f"{source['hardware']}, {source['cores']} cores",
        "python": source["python"],
        "torch": source["torch"],
        "kernels": kernels.describe(),
    }


def _options(arguments: list[str]) -> list[str]:
    """Return the options of a command without those that say where to write."""
    kept, skip = [], False
    for argument in arguments:
        if not skip and argument not in ("--json", "--plot"):
            kept.append(argument)
        skip = argument in ("--json", "--plot")
    return [argument for argument in kept if not argument.startswith(("--json=", "--plot="))]


def write_results(path: Path | None, results: dict[str, Any]) -> None:
    """Write the results with their environment as JSON; do nothing without a path."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(environment() | results, indent=1, ensure_ascii=False) + "\n")
    print(f"Wrote {path}.")
