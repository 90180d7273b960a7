"""Compare two ways to use the cores for a sweep: one single-threaded process per core, or one process with a thread per core.

    ANYNORM_DATA=… python benchmarks/processes.py [--rounds 5]

There is one run on CIFAR-10 per core. The runs are trained in parallel in single-threaded processes, or one after the other in a
multi-threaded process, with the same number of steps. The two ways are timed alternately; the result is the minimum over several
rounds.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache
from multiprocessing import get_context

import torch

from anynorm.lab.recipes.support.presets import BOTTLENECK, TINY_RESNET
from anynorm.lab.recipes.support.runs import make_config
from anynorm.lab.recipes.support.settings import Training
from anynorm.lab.tasks.run import make_trainer
from anynorm.lab.training.provenance import cpu_count
from anynorm.lab.training.trainer import Trainer

CASES = [
    ("resnet10 at 8 px, batch 2", TINY_RESNET, 2, 200),
    ("resnet10 at 8 px, batch 8", TINY_RESNET, 8, 100),
    ("resnet10 at 8 px, batch 32", TINY_RESNET, 32, 60),
    ("resnet26 at 16 px, batch 32", BOTTLENECK.config, 32, 20),
    ("resnet18 at 32 px, batch 128", replace(TINY_RESNET, data="cifar10", model="resnet18"), 128, 1),
]
"""Tuples of name, configuration, batch size and number of steps."""


def run_steps(case: int) -> None:
    """Run all steps of one run of a case."""
    trainer = _make_trainer(case)
    for _ in range(CASES[case][3]):
        trainer.training_step()


@lru_cache(maxsize=1)
def _make_trainer(case: int) -> Trainer:
    _, config, batch_size, _ = CASES[case]
    training = Training(config, base_batch_size=32)
    return make_trainer(make_config(replace(config, batch_size=batch_size, epochs=1000), training))


def time_runs(pool: ProcessPoolExecutor, case: int) -> float:
    """Submit one run per core to a pool, and return the time until all have finished, in seconds."""
    start = time.perf_counter()
    for future in [pool.submit(run_steps, case) for _ in range(cpu_count())]:
        future.result()
    return time.perf_counter() - start


def main() -> None:
    """Measure, and print one line per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (default: 5)")
    rounds = parser.parse_args().rounds
    spawn = get_context("spawn")
    single_threaded = ProcessPoolExecutor(cpu_count(), spawn, torch.set_num_threads, (1,))
    multi_threaded = ProcessPoolExecutor(1, spawn, torch.set_num_threads, (cpu_count(),))
    with single_threaded, multi_threaded:
        for case, (name, *_) in enumerate(CASES):
            # the first round loads the data and builds the networks
            times = [(time_runs(single_threaded, case), time_runs(multi_threaded, case)) for _ in range(1 + rounds)][1:]
            processes, threads = map(min, zip(*times, strict=True))
            ratio = f"{processes / threads:.2f} of the time of one process of {cpu_count()} threads"
            print(f"{name}: {cpu_count()} processes take {ratio}", flush=True)


if __name__ == "__main__":
    main()
