"""Time per training step of several configurations, measured in turn because the machine may be shared, and cached."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import torch

from anynorm.data import ImageDataset
from anynorm.errors import AnynormError
from anynorm.io.atomic import atomic_write
from anynorm.training.config import Config
from anynorm.training.provenance import provenance
from anynorm.training.trainer import DivergedError, Trainer

ROUNDS = 7
SECONDS = 0.05
"""Minimum duration of one measurement."""


def step_times(configs: list[Config], data: ImageDataset, root: Path | None = None) -> dict[str, float]:
    """Return the seconds per step of each configuration's norm: the best of several rounds, on one thread.

    Args:
        configs: runs that differ in their norm. One that cannot be built or diverges is left out.
        data: their data set.
        root: the folder of a store. Results are cached in its folder `timings`, by the configurations, the versions of the code
            and its packages, and the hardware: a second call does not train. All configurations of a call are one entry, because
            only times that were measured together can be compared. None for no cache.
    """
    path = None if root is None else root / "timings" / f"{_cache_key(configs)}.json"
    if path is not None and (cached := _read_cache(path)) is not None:
        return cached
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = _measure(configs, data)
    finally:
        torch.set_num_threads(threads)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as part:
            part.write_text(json.dumps({"ids": [config.id for config in configs], "provenance": provenance(), "seconds": times}))
    return times


def _cache_key(configs: list[Config]) -> str:
    key = [sorted(config.id for config in configs), provenance()]
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]


def _read_cache(path: Path) -> dict[str, float] | None:
    """Return cached times; None if there are none, or the file is damaged."""
    try:
        content: Any = json.loads(path.read_text())
        return {str(norm): float(seconds) for norm, seconds in content["seconds"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _measure(configs: list[Config], data: ImageDataset) -> dict[str, float]:
    trainers: dict[str, Trainer] = {}
    for config in configs:
        try:
            trainer = Trainer(config, data)
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
    return best


def _time_step(trainer: Trainer) -> float:
    """Return the mean seconds of the steps that fit into `SECONDS`, at least one."""
    start, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - start < SECONDS:
        trainer.step %= trainer.steps
        trainer.training_step()
        count += 1
    return (time.perf_counter() - start) / count
