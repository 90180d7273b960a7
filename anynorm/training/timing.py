"""What a training step step_times with each norm, as a ratio to one of them, timed in turn: the machine may be shared."""

from __future__ import annotations

import time

import torch

from anynorm.data import ImageDataset
from anynorm.errors import AnynormError
from anynorm.training.config import Config
from anynorm.training.trainer import DivergedError, Trainer

ROUNDS = 7
SECONDS = 0.05
"""How long one timing lasts, at least."""


def step_times(configs: list[Config], data: ImageDataset) -> dict[str, float]:
    """Give the seconds of a step with each configuration's norm, the best of several rounds in which each has its turn.

    One thread, as runs of a comparison have.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _best(configs, data)
    finally:
        torch.set_num_threads(threads)


def _best(configs: list[Config], data: ImageDataset) -> dict[str, float]:
    trainings = {}
    for config in configs:
        try:
            trainings[config.norm] = Trainer(config, data)
            trainings[config.norm].advance()
        except (AnynormError, DivergedError):
            trainings.pop(config.norm, None)
    best: dict[str, float] = {}
    for _ in range(ROUNDS):
        for norm, training in list(trainings.items()):
            try:
                best[norm] = min(best.get(norm, float("inf")), _timed(training))
            except DivergedError:
                del trainings[norm]
    return best


def _timed(training: Trainer) -> float:
    """Time as many steps as last a moment."""
    began, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - began < SECONDS:
        training.step %= training.steps
        training.advance()
        count += 1
    return (time.perf_counter() - began) / count
