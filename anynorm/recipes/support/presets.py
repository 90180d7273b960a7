"""Cells of recipes that are training runs: the configuration of a cell, its run in a store, the numbers of its row.

The runs are kept in the folder that ANYNORM_RUNS names (`runs/recipes`, if nothing does): two recipes that want the same run
share it, and one that was killed goes on where it was.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from anynorm.data import load
from anynorm.recipes.support.claims import Claim, pick, spread
from anynorm.recipes.support.record import Row
from anynorm.training.config import Config, config_from_dict, hash_sources
from anynorm.training.run import run
from anynorm.training.store import ENDED, Store

RUNS = "ANYNORM_RUNS"
Numbers = Callable[[list[Row]], list[Any]]
Settings = dict[str, Any]
TRAIN: Settings = {
    "data": "cifar10@8", "model": "resnet10", "num_train": 5000, "epochs": 3, "lr": 0.05, "weight_decay": 5e-4, "schedule": "cosine",
    "crop": 1, "flip": True, "num_test": 5000, "num_evals": 1,
}  # fmt: skip
DESK: Settings = {"train": TRAIN, "base_batch_size": 32, "seeds": 3}
"""CIFAR-10 at 8 × 8 pixels, on which a network of four stages ends in maps of 1 × 1: a statistic of BN at batch 2 has two values
there. Of what was tried it is the setting in which two cores see BN fail at small batches (benchmarks/README.md has the search).
The price is that IN alone has no meaning on maps of 1 × 1, and is refused."""
FEWER: Settings = DESK | {"train": TRAIN | {"num_train": 4000}}
"""The same with fewer images, for tables of many cells."""
GRID: Settings = DESK | {"train": FEWER["train"] | {"model": "small"}}
"""The same with a stage less, and last maps of 2 × 2: where IN is wanted alone."""
SMALL: Settings = {"data": "digits", "num_train": 64, "epochs": 1, "num_test": 64}
SMOKE: Settings = {"train": TRAIN | SMALL, "base_batch_size": 32, "seeds": 2}

BLOCKS: Settings = {
    "data": "cifar10@16", "model": "resnet26", "num_train": 7500, "epochs": 3, "lr": 0.05, "weight_decay": 1e-4, "schedule": "cosine",
    "crop": 2, "flip": True, "num_test": 5000, "num_evals": 1,
}  # fmt: skip
"""How the desk trains bottleneck networks."""
CIFAR: Settings = {
    "train": {
        "data": "cifar10", "model": "resnet18", "epochs": 200, "lr": 0.1, "weight_decay": 5e-4, "schedule": "step", "crop": 2,
        "flip": True,
    },
    "base_batch_size": 128,
    "seeds": 3,
}  # fmt: skip
"""The published setting of hn on CIFAR-10."""
IMAGENET: Settings = {
    "train": {
        "data": "folder:imagenet", "image_size": 224, "model": "resnet50", "epochs": 120, "lr": 0.1, "weight_decay": 1e-4, "crop": 16,
        "schedule": "step-quarters", "flip": True, "grad_accum_steps": 8, "num_evals": 120,
    },
    "base_batch_size": 32,
    "seeds": 3,
    "median": 5,
}  # fmt: skip
"""The published setting of bgn on ImageNet: the eight devices are eight passes a step, and the accuracy is the median of the last
five epochs. Two things the lab does not have: crops of random sizes (here a margin of 16 pixels), and images that are read as
they are needed (here all are in memory: ImageNet takes some 190 GB a process)."""
IMAGENET_100: Settings = IMAGENET | {
    "train": IMAGENET["train"] | {"epochs": 100, "num_evals": 100, "schedule": "step-30-60-90"},
    "median": 1,
}
"""That of sn and xbn: 100 epochs, and the accuracy after the last."""


def root() -> Path:
    """Give the folder that runs of recipes are kept in."""
    return Path(os.environ.get(RUNS, "runs/recipes"))


def config_of(settings: Settings, norm: str, batch_size: int, seed: int, **others: Any) -> Config:
    """Give the configuration of a cell.

    Args:
        settings: `train` holds settings of runs; `rate` among them is that of a batch of `per` samples, and scaled linearly.
        others: settings of this cell.
    """
    values = {**settings["train"], **others}
    rate = values.pop("lr") * batch_size / settings["base_batch_size"]
    config = config_from_dict({**values, "norm": norm, "batch_size": batch_size, "seed": seed, "lr": rate})
    return replace(config, source_hash=_made_of(Config(data=config.data, model=config.model)))


def trained(config: Config) -> dict[str, Any]:
    """Train a run, unless it is there, and give its record; one that another process has is waited for."""
    store = Store(root())
    while not _ended(store, config):
        if not run(config, root(), data=_data(config.data, config.image_size)) and not _ended(store, config):
            time.sleep(1)
    return store.record(config.id)


_data = lru_cache(maxsize=2)(load)
"""A process has many runs of the same data."""
_made_of = lru_cache(hash_sources)
"""A folder may hold a million files."""


def _ended(store: Store, config: Config) -> bool:
    return any(row["id"] == config.id and row["status"] in ENDED for row in store.rows()) and store.is_valid(config.id)


def numbers(record: dict[str, Any], median: int = 1) -> Row:
    """Give what a row tells of a run: accuracies in percent, None where it failed, and why.

    Args:
        median: of how many of the last points of the curve the test accuracy is the median.
    """
    done = record["status"] == "done"
    errors = [point["test_error"] for point in record["curve"][-median:]]
    return {
        "accuracy": round(100 - statistics.median(errors), 3) if done else None,
        "train_accuracy": round(100 - record["train_error"], 3) if done and record["train_error"] is not None else None,
        "failed": "" if done else record["note"],
        "seconds": record["seconds"],
        "commit": record["provenance"]["commit"],
    }


def column(name: str, **cell: Any) -> Numbers:
    """Give a column of a cell, a number a seed."""
    return lambda rows: pick(rows, name, **cell)


accuracy = partial(column, "accuracy")
"""Give the accuracies of a cell, a number a seed."""


def fall(large: int, small: int, **cell: Any) -> Numbers:
    """Give how many points of accuracy a cell loses from a large batch to a small one."""

    def found(rows: list[Row]) -> list[Any]:
        sizes = [pick(rows, "accuracy", batch_size=size, **cell) for size in (large, small)]
        return [None if None in pair else pair[0] - pair[1] for pair in zip(*sizes, strict=True)]

    return found


def better(one: str, other: str, paper: str, **cell: Any) -> Claim:
    """Claim that a norm is more accurate than another in the same cell."""
    where = ", ".join(f"{key.replace('_size', '').replace('_', ' ')} {value}" for key, value in cell.items())
    says = f"`{one}` is more accurate than `{other}`" + (f" ({where})" if where else "")
    return Claim(says, paper, accuracy(norm=one, **cell), accuracy(norm=other, **cell))


def told(rows: list[Row], **cell: Any) -> str:
    """Write mean ± sd of a cell's accuracies; runs that failed are told."""
    return spread(pick(rows, "accuracy", **cell), ".1f", ".1f")


def there(rows: list[Row], **cell: Any) -> list[float]:
    """Give the accuracies of the runs of a cell that did not fail."""
    return [value for value in pick(rows, "accuracy", **cell) if value is not None]


def saved(figure: Any, path: Path) -> list[Path]:
    """Write a picture at a path without ending."""
    picture = path.with_name(f"{path.name}.png")
    figure.savefig(picture, dpi=150)
    return [picture]
