"""Compare norms: train norms × batch sizes × seeds with equal settings, and rank them by the metric of the task.

A comparison is a `Sweep` whose cells are runs of a store: finished runs are read, interrupted runs resume, the rest is trained.
The learning rate is that of batch size 32 and follows the batch size by a rule, linear by default (Goyal et al. 2017, sec. 2.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from anynorm.errors import SpecError
from anynorm.progress import track
from anynorm.report.results import Row, row_from_record, summary
from anynorm.report.step_times import timed_config
from anynorm.table import Table
from anynorm.tasks import task_class
from anynorm.training.config import LR_SCALINGS, Config, config_from_dict, hash_sources
from anynorm.training.devices import Hardware, make_fabric, num_gpus
from anynorm.training.distributed import Processes
from anynorm.training.executors import make_executor
from anynorm.training.provenance import cpu_count
from anynorm.training.store import Store
from anynorm.training.sweep import Sweep, get_or_train, grid
from anynorm.training.task import Metric, Task
from anynorm.training.timing import step_times
from anynorm.training.trainer import Trainer

SEEDS = 3


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
        hardware: where the runs are trained.
    """

    base: Config
    norms: Sequence[str] = Task.comparison_defaults["norms"]
    batch_sizes: Sequence[int] = Task.comparison_defaults["batch_sizes"]
    seeds: int = SEEDS
    lr_scaling: str = "linear"
    root: Path = Path("runs")
    hardware: Hardware = Hardware()

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
        return row_from_record(get_or_train(self.config(**cell), self.root, self.hardware))

    @property
    def metric(self) -> Metric:
        """The metric by which the norms are compared."""
        return task_class(self.base.task).metric_for(self.base)

    def rows(self) -> list[Row]:
        """Return the rows of all runs that have finished."""
        store = Store(self.root)
        ids = [self.config(**cell).id for cell in self.sweep.cells]
        return [row_from_record(store.record(run)) for run in ids if store.is_valid(run)]

    def run(self, processes: int | None = None, executor: str = "local") -> Iterator[Row]:
        """Train the runs that have not finished and yield the row of each when it ends.

        Args:
            processes: number of runs at a time; None for one per GPU, or one per core with one thread each on the CPU.
            executor: where they run: local or ray.
        """
        finished = self.rows()
        check_task(self)
        # The processes of several devices train one run together.
        limit = 1 if self.base.devices > 1 else processes or num_gpus(self.hardware) or cpu_count()
        workers = max(1, min(limit, len(self.sweep.missing(finished))))
        yield from self.sweep.run(make_executor(executor, workers), finished)

    def table(self) -> Table:
        """Return the results of the runs that have finished, the cost of each norm, and the recommendation."""
        return summary(self.rows(), self.norms, self.batch_sizes, self.step_seconds())

    def fit_budget(self, minutes: float, processes: int | None = None) -> Comparison:
        """Return this comparison with as many epochs as all runs together can train in `minutes`, the same for each.

        Args:
            minutes: wall-clock time for all runs.
            processes: the number of runs at a time; None for one per GPU, or one per core on the CPU.

        Raises:
            SpecError: if `minutes` is not positive.
        """
        if minutes <= 0:
            raise SpecError(f"minutes must be above 0; got {minutes}.")
        check_task(self)
        seconds = 0.0
        for (norm, size), step_time in self.step_seconds().items():
            steps_per_epoch = Trainer(timed_config(self.config(norm, size)), hardware=self.hardware).steps_per_epoch
            seconds += step_time * steps_per_epoch * self.seeds
        epochs = int(60 * minutes * (processes or num_gpus(self.hardware) or cpu_count()) / seconds) if seconds else 1
        if self.base.devices > 1:  # all processes take the number of the first
            make_fabric(self.base, self.hardware)
            group = Processes(self.base.devices)
            epochs = int(group.sum([float(epochs) if group.is_main else 0.0])[0])
        return replace(self, base=replace(self.base, epochs=max(1, epochs)))

    def step_seconds(self) -> dict[tuple[str, int], float]:
        """Return the seconds per training step by norm and batch size, where a step succeeds; kept in the store once measured."""
        seconds: dict[tuple[str, int], float] = {}
        for size in self.batch_sizes:
            configs = [timed_config(self.config(norm, size)) for norm in self.norms]
            times = step_times(configs, self.root, self.hardware)
            seconds |= {(norm, size): times[norm] for norm in self.norms if norm in times}
        return seconds


def compare(
    norms: Sequence[str] | None = None,
    batch_sizes: Sequence[int] | None = None,
    seeds: int = SEEDS,
    *,
    task: str = "classification",
    data: str | None = None,
    model: str | None = None,
    epochs: int | None = None,
    minutes: float | None = None,
    num_train: int | None = None,
    width: float | None = None,
    lr: float | None = None,
    lr_scaling: str | None = None,
    attack: str | None = None,
    config: Mapping[str, Any] | None = None,
    device: str = "auto",
    num_workers: int = 1,
    processes: int | None = None,
    executor: str = "local",
    runs: Path | str = "runs",
) -> Table:
    """Train a model with each norm at each batch size and recommend which norm to use.

    Scripts that use several processes must call this under `if __name__ == "__main__":`. Where an argument is None, the task has
    a default (`Task.comparison_defaults`).

    Args:
        norms: norm specs; "gn:4~bn" alternates gn:4 and bn, "xbn=gn:64" makes XBN blocks.
        batch_sizes: samples per batch.
        seeds: number of seeds; a significance test needs 3.
        task: name of a task or "package.module:Task" (see `anynorm.tasks`).
        data: name of a data set, "folder:PATH", "stream:PATH", "hf:NAME" or "package.module:factory" (see `anynorm.data`).
        model: name of a model or "package.module:factory" (see `anynorm.models`).
        epochs: passes over the training images per run.
        minutes: time for all runs together, from which `epochs` is computed.
        num_train: number of training images, drawn by the seed; None for all.
        width: width multiplier of the model; None for its default.
        lr: learning rate at batch size 32.
        lr_scaling: how the learning rate follows the batch size: linear, sqrt or none.
        attack: comma-separated attacks on the trained networks, such as "pgd:4" or "fgsm,pgd:10"; the table then has errors on
            adversarial images, attacked with norms in eval and in train mode. None for those of the task.
        config: other fields of `anynorm.training.config.Config`, such as `{"weight_decay": 0.0}`, and options of the task.
        device: auto, cpu, cuda or mps.
        num_workers: number of processes per run that decode streamed images.
        processes: number of runs at a time; None for one per GPU, or one per core with one thread each on the CPU.
        executor: where they run: local or ray.
        runs: the folder of the store; finished runs are not trained again.

    Returns:
        One row per norm with test error, estimation shift, step time and saved memory at each batch size, and the recommendation.

    Raises:
        SpecError: if an argument has no meaning.
        DataError: if the data or the model cannot be loaded or do not fit each other.
    """
    settings = {"task": task, "data": data, "model": model, "epochs": epochs, "num_train": num_train, "width": width, "lr": lr}
    settings["attack"] = attack
    varied = {"norms": norms, "batch_sizes": batch_sizes, "seeds": seeds, "lr_scaling": lr_scaling}
    hardware = Hardware(device, num_workers=num_workers)
    comparison = make_comparison(settings | varied | dict(config or {}), Path(runs), hardware)
    if minutes is not None:
        comparison = comparison.fit_budget(minutes, processes)
    missing = len(comparison.sweep.missing(comparison.rows()))
    for _ in track(comparison.run(processes, executor), "comparing norms", missing):
        pass
    return comparison.table()


def make_comparison(settings: Mapping[str, Any], root: Path, hardware: Hardware) -> Comparison:
    """Return a comparison.

    Args:
        settings: norms, batch_sizes, seeds and lr_scaling of `Comparison`, fields of `Config`, and options of the task; where one
            is missing or None, the default of the task (`Task.comparison_defaults`).
        root: the folder of the store.
        hardware: where the runs are trained.

    Raises:
        SpecError: if a setting does not exist or has no meaning.
    """
    task = task_class(str(settings.get("task", Config.task)))
    values = {
        **Task.comparison_defaults,
        **task.comparison_defaults,
        **{name: value for name, value in settings.items() if value is not None},
    }
    varied = {name: values.pop(name) for name in ("norms", "batch_sizes", "seeds", "lr_scaling") if name in values}
    return Comparison(make_base(values), **varied, root=root, hardware=hardware)


def make_base(settings: Mapping[str, Any]) -> Config:
    """Return the configuration that the runs of a comparison share, with a hash of its sources.

    Raises:
        SpecError: if a setting does not exist or is one that a comparison varies.
    """
    for name, argument in {"norm": "norms", "batch_size": "batch_sizes", "seed": "seeds"}.items():
        if name in settings:
            raise SpecError(f"{name} differs between the runs of a comparison; use {argument} instead.")
    known = {each.name for each in fields(Config)}
    options = task_class(str(settings.get("task", Config.task))).default_options
    given = {name: value for name, value in settings.items() if name not in known and name in options}
    own = {name: value for name, value in settings.items() if name not in given}
    given |= own.get("options", {})
    changed = {
        name: float(value) if isinstance(options.get(name), float) and isinstance(value, int) else value
        for name, value in given.items()
        if name not in options or value != options[name]
    }
    base = config_from_dict({**own, "options": changed})
    return replace(base, source_hash=hash_sources(base))


def check_task(comparison: Comparison) -> None:
    """Make one batch of each size and run the task on it, so that a task that cannot work is reported before the first run.

    A norm that cannot be used does not stop a comparison: the task is checked with BN or, if it does not take BN, with the first
    norm that it takes.

    Raises:
        DataError: if the task finds its networks unfit for the data (`Task.check`).
        SpecError: if no norm can be used.
    """
    base = replace(comparison.base, devices=1, sync=False, compile=False)
    for size in comparison.batch_sizes:
        errors = {}
        for norm in dict.fromkeys(["bn", *comparison.norms]):
            try:
                _check(replace(base, norm=norm, batch_size=size), comparison.hardware)
                break
            except SpecError as error:
                errors[norm] = error
        else:
            raise errors[comparison.norms[0]]


def _check(config: Config, hardware: Hardware) -> None:
    task = Trainer(config, hardware=hardware).task
    try:
        task.check()
    finally:
        task.close()
