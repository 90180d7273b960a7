"""How much of a training step goes into its data: `python benchmarks/data.py` (CIFAR-10 under $ANYNORM_DATA).

Every augmentation is on (crops, flips, blanked squares, mixtures); the best of several timings of each, one thread.
"""

import time
from collections.abc import Callable

import torch

from anynorm.data import load
from anynorm.training.config import Config
from anynorm.training.trainer import Trainer

CASES = [("small", 1.0, 2), ("small", 1.0, 32), ("small", 1.0, 128), ("resnet18", 0.25, 32)]


def best(work: Callable[[], object], rounds: int = 15) -> float:
    """Time work several times; give the shortest, in milliseconds."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return 1e3 * min(found)


def main() -> None:
    """Print one line a case."""
    torch.set_num_threads(1)
    data = load("cifar10")
    for model, width, size in CASES:
        options = {"crop": 4, "flip": True, "cutout": 8, "mixup": 0.2, "images": 2000}
        training = Trainer(Config(data="cifar10", model=model, width=width, batch_size=size, **options), data)  # type: ignore[arg-type]
        training.training_step()
        batch, step = best(lambda t=training: t.batch(5, 0)), best(training.training_step)  # type: ignore[misc]
        print(f"{model} ×{width}, batch {size}: {batch:.2f} ms of {step:.2f} ms, {100 * batch / step:.1f} %")


if __name__ == "__main__":
    main()
