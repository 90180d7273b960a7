"""Compare norms on a model and a data set: train norms × batch sizes × seeds with equal settings and rank them by test error.

A comparison is a `Sweep` whose cells are runs of a store: finished runs are read, interrupted runs resume, the rest is trained.
The learning rate is that of batch size 32 and follows the batch size by a rule, linear by default (Goyal et al. 2017, sec. 2.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from anynorm.data import ImageDataset, load_dataset
from anynorm.errors import AnynormError, DataError, SpecError
from anynorm.models import build_model
from anynorm.progress import track
from anynorm.report.results import Row, row_from_record, summary
from anynorm.report.step_times import timed_config
from anynorm.surgery.find import find_norms
from anynorm.table import Table
from anynorm.training.config import LR_SCALINGS, Config, config_from_dict, hash_sources
from anynorm.training.executors import make_executor
from anynorm.training.provenance import cpu_count
from anynorm.training.store import Store
from anynorm.training.sweep import Sweep, get_or_train, grid
from anynorm.training.timing import step_times
from anynorm.training.trainer import Trainer

DATA, MODEL = "digits", "resnet10"
NORMS = ("bn", "gn:8", "sn", "hn", "bgn")
BATCH_SIZES = (2, 32)
SEEDS = 3
EPOCHS = 2
"""With 2 epochs the 30 runs of the default comparison take at most 2.5 minutes on two cores."""
LR = 0.05
"""At batch size 32."""


@dataclass(frozen=True)
class Comparison:
    """Norms to compare on one model and data set.

    Args:
        base: every setting of the runs except norm, batch size, seed; `base.lr` belongs to `base.batch_size`.
        norms: norm specs, or layouts such as "gn:4~bn" (see `anynorm.training.norm_layout`).
        batch_sizes: samples per batch.
        seeds: number of seeds.
        lr_scaling: how the learning rate follows the batch size: linear, sqrt or none.
        root: the folder of the store.
        skip_unreadable: leave out image files that cannot be decoded instead of raising.
    """

    base: Config
    norms: Sequence[str] = NORMS
    batch_sizes: Sequence[int] = BATCH_SIZES
    seeds: int = SEEDS
    lr_scaling: str = "linear"
    root: Path = Path("runs")
    skip_unreadable: bool = False

    def __post_init__(self) -> None:
        if self.lr_scaling not in LR_SCALINGS:
            raise SpecError(f"lr_scaling must be one of {' '.join(LR_SCALINGS)}; got {self.lr_scaling!r}.")
        if isinstance(self.norms, str):
            raise SpecError(f"norms must be a list of specs; got the string {self.norms!r}. Usable: norms=[{self.norms!r}].")
        if not self.norms or not self.batch_sizes or self.seeds < 1:
            raise SpecError(
                f"A comparison needs at least one norm, one batch size and one seed; got {len(self.norms)} norms, "
                f"{len(self.batch_sizes)} batch sizes and {self.seeds} seeds."
            )
        object.__setattr__(self, "norms", list(dict.fromkeys(self.norms)))
        object.__setattr__(self, "batch_sizes", list(dict.fromkeys(self.batch_sizes)))

    def config(self, norm: str, batch_size: int, seed: int = 0) -> Config:
        """Return the configuration of a run."""
        lr = self.base.lr * LR_SCALINGS[self.lr_scaling](batch_size / self.base.batch_size)
        return replace(self.base, norm=norm, batch_size=batch_size, seed=seed, lr=lr)

    @property
    def sweep(self) -> Sweep:
        """The runs, seed by seed, so that every norm has a first result early."""
        cells = grid(self.seeds, batch_size=self.batch_sizes, norm=self.norms)
        return Sweep(sorted(cells, key=lambda cell: cell["seed"]), self.measure)

    def measure(self, cell: Row) -> Row:
        """Train the run of a cell, unless the store has its record, and return its metrics."""
        return row_from_record(get_or_train(self.config(**cell), self.root, self.load_data()))

    def load_data(self) -> ImageDataset:
        """Load the data set, once per process."""
        return _load(self.base.data, self.base.image_size, self.base.source_hash, self.skip_unreadable)

    def rows(self) -> list[Row]:
        """Return the rows of all runs that have finished."""
        store = Store(self.root)
        ids = [self.config(**cell).id for cell in self.sweep.cells]
        return [row_from_record(store.record(run)) for run in ids if store.is_valid(run)]

    def run(self, processes: int | None = None, executor: str = "local") -> Iterator[Row]:
        """Train the runs that have not finished and yield the row of each when it ends.

        Args:
            processes: number of runs at a time, each with one thread; None for one per core.
            executor: where they run: local or ray.
        """
        finished = self.rows()
        check_model(self, self.load_data())
        # With torchrun, all processes train one run together.
        limit = 1 if self.base.devices > 1 else processes or cpu_count()
        workers = max(1, min(limit, len(self.sweep.missing(finished))))
        yield from self.sweep.run(make_executor(executor, workers), finished)

    def table(self) -> Table:
        """Return the results of the runs that have finished, the cost of each norm, and the recommendation."""
        return summary(self.rows(), self.norms, self.batch_sizes, self.step_seconds())

    def fit_budget(self, minutes: float, processes: int | None = None) -> Comparison:
        """Return this comparison with as many epochs as all runs together can train in `minutes`, the same for each.

        Args:
            minutes: wall-clock time for all runs.
            processes: the number of processes that train; None for one per core.

        Raises:
            SpecError: if `minutes` is not positive.
        """
        if minutes <= 0:
            raise SpecError(f"minutes must be above 0; got {minutes}.")
        check_model(self, self.load_data())
        seconds = 0.0
        for (norm, size), step_time in self.step_seconds().items():
            steps_per_epoch = Trainer(timed_config(self.config(norm, size)), self.load_data()).steps_per_epoch
            seconds += step_time * steps_per_epoch * self.seeds
        epochs = int(60 * minutes * (processes or cpu_count()) / seconds) if seconds else 1
        return replace(self, base=replace(self.base, epochs=max(1, epochs)))

    def step_seconds(self) -> dict[tuple[str, int], float]:
        """Return the seconds per training step by norm and batch size, where a step succeeds; kept in the store once measured."""
        seconds: dict[tuple[str, int], float] = {}
        for size in self.batch_sizes:
            configs = [timed_config(self.config(norm, size)) for norm in self.norms]
            times = step_times(configs, self.load_data(), self.root)
            seconds |= {(norm, size): times[norm] for norm in self.norms if norm in times}
        return seconds


@lru_cache(maxsize=1)
def _load(name: str, image_size: int, source_hash: str, skip_unreadable: bool) -> ImageDataset:  # noqa: ARG001
    """Load a data set; `source_hash` is part of the cache's key, so that a folder that has changed is read again."""
    return load_dataset(name, image_size, skip_unreadable=skip_unreadable)


def compare(
    norms: Sequence[str] = NORMS,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    seeds: int = SEEDS,
    *,
    data: str = DATA,
    model: str = MODEL,
    epochs: int = EPOCHS,
    minutes: float | None = None,
    num_train: int | None = None,
    width: float | None = None,
    lr: float = LR,
    lr_scaling: str = "linear",
    config: Mapping[str, Any] | None = None,
    skip_unreadable: bool = False,
    processes: int | None = None,
    executor: str = "local",
    runs: Path | str = "runs",
) -> Table:
    """Train a model with each norm at each batch size and recommend which norm to use.

    Scripts that use several processes must call this under `if __name__ == "__main__":`.

    Args:
        norms: norm specs; "gn:4~bn" alternates gn:4 and bn, "xbn=gn:64" makes XBN blocks.
        batch_sizes: samples per batch.
        seeds: number of seeds; a significance test needs 3.
        data: name of a data set, "folder:PATH" or "package.module:factory" (see `anynorm.data`).
        model: name of a model or "package.module:factory" (see `anynorm.models`).
        epochs: passes over the training images per run.
        minutes: time for all runs together, from which `epochs` is computed.
        num_train: number of training images, drawn by the seed; None for all.
        width: width multiplier of the model; None for its default.
        lr: learning rate at batch size 32.
        lr_scaling: how it follows the batch size: linear, sqrt or none.
        config: other fields of `anynorm.training.config.Config`, such as `{"weight_decay": 0.0}`.
        skip_unreadable: leave out image files that cannot be decoded instead of raising.
        processes: number of runs at a time, each with one thread; None for one per core.
        executor: where they run: local or ray.
        runs: the folder of the store; finished runs are not trained again.

    Returns:
        One row per norm with test error, estimation shift, step time and saved memory at each batch size, and the recommendation.

    Raises:
        SpecError: if an argument has no meaning.
        DataError: if the data or the model cannot be loaded or do not fit each other.
    """
    settings = {"data": data, "model": model, "epochs": epochs, "num_train": num_train, "width": width, "lr": lr}
    base = make_base(settings | dict(config or {}))
    comparison = Comparison(base, norms, batch_sizes, seeds, lr_scaling, Path(runs), skip_unreadable)
    if minutes is not None:
        comparison = comparison.fit_budget(minutes, processes)
    missing = len(comparison.sweep.missing(comparison.rows()))
    for _ in track(comparison.run(processes, executor), "comparing norms", missing):
        pass
    return comparison.table()


def make_base(settings: Mapping[str, Any]) -> Config:
    """Return the configuration that the runs of a comparison share, with a hash of its sources.

    Raises:
        SpecError: if a setting does not exist or is one that a comparison varies.
    """
    for name, argument in {"norm": "norms", "batch_size": "batch_sizes", "seed": "seeds"}.items():
        if name in settings:
            raise SpecError(f"{name} differs between the runs of a comparison; use {argument} instead.")
    base = config_from_dict({"data": DATA, "model": MODEL, "epochs": EPOCHS, "lr": LR, **settings})
    return replace(base, source_hash=hash_sources(base))


def check_model(comparison: Comparison, data: ImageDataset) -> None:
    """Run the model once per batch size, so that a model that cannot work is reported before the first run.

    Raises:
        DataError: if the model has no norm, raises, or returns anything but (batch size, number of classes).
    """
    base = comparison.base
    for size in comparison.batch_sizes:
        config = replace(base, norm="bn", batch_size=size, devices=1, sync=False)
        model = build_model(config.model, data.shape, config.width)
        if not find_norms(model):
            raise DataError(f"model must have at least one norm among its modules; {config.model} has none.")
        try:
            x, _ = Trainer(config, data).batch(0, 0)
            with torch.no_grad():
                logits = model.eval()(x)
        except AnynormError:
            raise
        except Exception as error:  # any error of a user's model
            raise DataError(f"{config.model} fails on images of {config.data}: {type(error).__name__}: {error}.") from error
        expected = (size, data.num_classes)
        if not isinstance(logits, torch.Tensor) or logits.shape != expected:
            got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
            raise DataError(f"{config.model} must return logits of shape {expected} for {size} images; got {got}.")
