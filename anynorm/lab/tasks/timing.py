"""Time per training step of several configurations, with a cache on disk.

The configurations are measured alternately, so that changes in the load of the machine affect all of them alike.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import torch

from anynorm.errors import AnynormError
from anynorm.io.atomic import atomic_write
from anynorm.lab.tasks.run import make_trainer
from anynorm.lab.training.config import Config
from anynorm.lab.training.curve import DivergedError
from anynorm.lab.training.devices import Hardware
from anynorm.lab.training.provenance import provenance
from anynorm.lab.training.trainer import Trainer

ROUNDS = 7
SECONDS = 0.05
"""Minimum duration of one measurement."""


def step_times(configs: list[Config], root: Path | None = None, hardware: Hardware | None = None) -> dict[str, float]:
    """Measure the seconds per training step of each configuration, on one thread: the minimum over several rounds.

    Args:
        configs: configurations that differ only in their norm.
        root: the folder of a store; None for no cache. Results are cached in the subfolder `timings`. The key of the cache is
            made of all configurations of a call, the versions of the code and its packages, and the hardware, because only times
            that were measured together can be compared.
        hardware: the hardware to measure on; the CPU by default.

    Returns:
        Seconds per step by norm. Norms whose networks cannot be built or diverge are left out.
    """
    hardware = hardware or Hardware("cpu")
    path = None if root is None else root / "timings" / f"{_cache_key(configs, hardware)}.json"
    if path is not None and (cached := _read_cache(path)) is not None:
        return cached
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = _measure(configs, hardware)
    finally:
        torch.set_num_threads(threads)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(
                json.dumps({"ids": [config.id for config in configs], "provenance": provenance(), "seconds": times})
            )
    return times


def _cache_key(configs: list[Config], hardware: Hardware) -> str:
    key = [sorted(config.id for config in configs), provenance(), *([hardware.kind] if hardware.kind != "cpu" else [])]
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]


def _read_cache(path: Path) -> dict[str, float] | None:
    """Return cached times; None if the file does not exist or is damaged."""
    try:
        content: Any = json.loads(path.read_text())
        return {str(norm): float(seconds) for norm, seconds in content["seconds"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _measure(configs: list[Config], hardware: Hardware) -> dict[str, float]:
    trainers: dict[str, Trainer] = {}
    built: list[Trainer] = []
    for config in configs:
        try:
            trainer = make_trainer(config, hardware)
            built.append(trainer)
            trainer.training_step()  # the first step compiles and allocates
        except (AnynormError, DivergedError):
            continue
        trainers[config.norm] = trainer
    best: dict[str, float] = {}
    for _ in range(ROUNDS):
        for norm, trainer in list(trainers.items()):
            try:
                best[norm] = min(best.get(norm, float("inf")), _time_step(trainer))
            except DivergedError:
                del trainers[norm]
    for trainer in built:
        trainer.task.close()
    return best


def _time_step(trainer: Trainer) -> float:
    """Return the mean seconds per step over at least one step and at least `SECONDS`."""
    start, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - start < SECONDS:
        trainer.step %= trainer.steps
        trainer.training_step()
        count += 1
    trainer.curve.check()  # waits until a GPU has finished all steps
    return (time.perf_counter() - start) / count
