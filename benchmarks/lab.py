"""How a sweep uses cores best: `python benchmarks/lab.py` (CIFAR-10 under $ANYNORM_DATA).

As many steps of as many runs as there are cores, by a process a core of one thread each, and by one process of as many threads
as cores, run after run; the same steps by either in turn, best of several.
"""

import time
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context

import torch

from anynorm.data import load
from anynorm.recipes.support.presets import BOTTLENECK, DESK, TRAIN
from anynorm.recipes.support.runs import make_config
from anynorm.training.provenance import cpu_count
from anynorm.training.trainer import Trainer

CASES = [
    ("resnet10 at 8 px, batch 2", TRAIN, 2, 200),
    ("resnet10 at 8 px, batch 8", TRAIN, 8, 100),
    ("resnet10 at 8 px, batch 32", TRAIN, 32, 60),
    ("resnet26 at 16 px, batch 32", BOTTLENECK, 32, 20),
    ("resnet18 at 32 px, batch 128", TRAIN | {"data": "cifar10", "model": "resnet18"}, 128, 1),
]
ROUNDS = 5
_load = lru_cache(load)


def steps(case: int) -> None:
    """Do the steps of one run of a case."""
    training = _training(case)
    for _ in range(CASES[case][3]):
        training.training_step()


@lru_cache(maxsize=1)
def _training(case: int) -> Trainer:
    _, train, batch_size, _ = CASES[case]
    return Trainer(make_config(DESK | {"train": train}, "bn", batch_size, 0, epochs=1000), _load(train["data"]))


def timed(pool: ProcessPoolExecutor, case: int) -> float:
    """Time a run of a case a core."""
    began = time.perf_counter()
    for done in [pool.submit(steps, case) for _ in range(cpu_count())]:
        done.result()
    return time.perf_counter() - began


def main() -> None:
    """Print one line a case."""
    spawn = get_context("spawn")
    many = ProcessPoolExecutor(cpu_count(), spawn, torch.set_num_threads, (1,))
    one = ProcessPoolExecutor(1, spawn, torch.set_num_threads, (cpu_count(),))
    with many, one:
        for case, (name, *_) in enumerate(CASES):
            times = [(timed(many, case), timed(one, case)) for _ in range(1 + ROUNDS)][1:]  # the first sets up
            apart, together = map(min, zip(*times, strict=True))
            print(
                f"{name}: {cpu_count()} processes take {apart / together:.2f} of the time of one process of {cpu_count()} threads",
                flush=True,
            )


if __name__ == "__main__":
    main()
