"""Measure time and saved memory, and write the results of a benchmark to a file.

Candidates are timed alternately, and the result is the minimum time of each. The machine may be shared with other processes, so
only ratios within one run are meaningful.
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
from anynorm.lab.training.provenance import provenance


def best_times(
    calls: Mapping[str, Callable[[], object]],
    seconds: float,
    min_rounds: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the minimum time of each function in seconds. In each round, every function is called once, in random order.

    Args:
        calls: the functions to time, by name.
        seconds: time after which no new round is started.
        min_rounds: minimum number of rounds.
        clock: the clock; `time.process_time` measures CPU time, which depends less on other processes.
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
    """A wrapper of a tensor saved for backward; autograd deletes it when the tensor is no longer needed."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def saved_bytes(module: nn.Module, x: Tensor, *condition: object) -> int:
    """Return the number of bytes saved for backward, without parameters and buffers; each storage is counted once."""
    alive: weakref.WeakSet[SavedTensor] = weakref.WeakSet()

    def pack(tensor: Tensor) -> SavedTensor:
        saved = SavedTensor(tensor)
        alive.add(saved)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        y = module(x.detach().requires_grad_(), *condition)
    state = {tensor.untyped_storage().data_ptr() for tensor in [*module.parameters(), *module.buffers()]}
    storages = [saved.tensor.untyped_storage() for saved in alive]  # read while y keeps the graph alive
    sizes = {storage.data_ptr(): storage.nbytes() for storage in storages if storage.data_ptr() not in state}
    del y
    return sum(sizes.values())


def condition_of(module: nn.Module) -> list[int]:
    """Return the condition with which to call a module: [0] (class or domain 0) for conditional norms, or else []."""
    return [0] if getattr(module, "takes_condition", False) else []


def environment() -> dict[str, Any]:
    """Return the command, processor, number of cores, versions of Python and torch, and the kernels of a measurement."""
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
    """Return the options of a command without output paths (--json and --plot)."""
    kept, skip = [], False
    for argument in arguments:
        if not skip and argument not in ("--json", "--plot"):
            kept.append(argument)
        skip = argument in ("--json", "--plot")
    return [argument for argument in kept if not argument.startswith(("--json=", "--plot="))]


def write_results(path: Path | None, results: dict[str, Any]) -> None:
    """Write the results and their environment as JSON; do nothing if `path` is None."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(environment() | results, indent=1, ensure_ascii=False) + "\n")
    print(f"Wrote {path}.")
