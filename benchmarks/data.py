"""Measure the fraction of a training step that is spent on preparing the batch.

    ANYNORM_DATA=… python benchmarks/data.py [--rounds 15]

CIFAR-10 with all augmentations (random crops, flips, cutout, mixup), on one thread; times are the minimum over several rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch

from anynorm.lab.tasks.run import make_trainer
from anynorm.lab.training.config import Config

CASES = [("small", 1.0, 2), ("small", 1.0, 32), ("small", 1.0, 128), ("resnet18", 0.25, 32)]
"""Tuples of model, width and batch size."""


def best_time(call: Callable[[], object], rounds: int) -> float:
    """Return the minimum time of a call over several rounds, in milliseconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def main() -> None:
    """Measure, and print one line per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="number of rounds (default: 15)")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    for model, width, batch_size in CASES:
        config = Config(
            data="cifar10",
            model=model,
            width=width,
            batch_size=batch_size,
            crop=4,
            flip=True,
            cutout=8,
            mixup=0.2,
            num_train=2000,
        )
        trainer = make_trainer(config)
        trainer.training_step()
        batch, step = best_time(partial(trainer.task.training_batch, 5), rounds), best_time(trainer.training_step, rounds)
        print(f"{model} ×{width}, batch {batch_size}: {batch:.2f} ms of {step:.2f} ms, {100 * batch / step:.1f} %")


if __name__ == "__main__":
    main()
