"""A comparison: norms × batch sizes × seeds trained with equal settings, and the norms ranked by the metric of the task.

Finished runs are read from the store, interrupted runs resume, and all others are trained. The learning rate is given for batch
size 32 and scaled with the batch size, linearly by default (Goyal et al. 2017, sec. 2.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anynorm.errors import SpecError
from anynorm.lab.comparison.check import check_task
from anynorm.lab.comparison.results import Results
from anynorm.lab.comparison.step_times import timed_config
from anynorm.lab.comparison.table import ComparisonTable, make_table
from anynorm.lab.tasks import task_class
from anynorm.lab.tasks.run import get_or_train, make_trainer
from anynorm.lab.tasks.timing import step_times
from anynorm.lab.training.comparison_defaults import ComparisonDefaults
from anynorm.lab.training.config import LR_SCALINGS, Config
from anynorm.lab.training.devices import Hardware, make_fabric, num_gpus
from anynorm.lab.training.distributed import Processes
from anynorm.lab.training.executors import make_executor
from anynorm.lab.training.provenance import cpu_count
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.store import Store
from anynorm.lab.training.sweep import Cell, grid
from anynorm.lab.training.task import Metric

SEEDS = 5


@dataclass(frozen=True)
class Comparison:
    """A comparison of norms with one model and data set.

    Args:
        base: the settings of all runs except norm, batch size and seed; `base.lr` is the learning rate at `base.batch_size`.
        norms: norm specs, or layouts such as "gn:4~bn" (see `anynorm.lab.training.norm_layout`).
        batch_sizes: numbers of samples per batch.
        seeds: number of seeds.
        lr_scaling: how the learning rate is scaled with the batch size: linear, sqrt or none.
        root: the folder of the store.
        hardware: the hardware to train on.
    """

    base: Config
    norms: Sequence[str] = ComparisonDefaults.norms
    batch_sizes: Sequence[int] = ComparisonDefaults.batch_sizes
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
        """Return the configuration of the run with this norm, batch size and seed."""
        lr = self.base.lr * LR_SCALINGS[self.lr_scaling](batch_size / self.base.batch_size)
        return replace(self.base, norm=norm, batch_size=batch_size, seed=seed, lr=lr)

    @property
    def cells(self) -> list[Cell]:
        """Norm, batch size and seed of all runs, sorted by seed, so that each norm has a first result early."""
        return sorted(grid(self.seeds, batch_size=self.batch_sizes, norm=self.norms), key=lambda cell: cell["seed"])

    @property
    def metric(self) -> Metric:
        """The metric by which the norms are compared."""
        return task_class(self.base.task).metric_for(self.base)

    def read(self) -> list[RunRecord]:
        """Return the records of all finished runs."""
        store = Store(self.root)
        return [record for cell in self.cells if (record := store.read(self.config(**cell).id)) is not None]

    def missing(self, records: Iterable[RunRecord]) -> list[Cell]:
        """Return the cells that have no record among `records`."""
        finished = {record.id for record in records}
        return [cell for cell in self.cells if self.config(**cell).id not in finished]

    def run(self, records: Iterable[RunRecord], processes: int | None = None, executor: str = "local") -> Iterator[RunRecord]:
        """Train all runs that have no record among `records`, and yield the record of each when it ends.

        Args:
            records: the records of finished runs, see `read`.
            processes: number of runs trained in parallel; None for one per GPU, or on the CPU one per core, with one thread each.
            executor: the executor of the runs, local or ray.
        """
        missing = self.missing(records)
        check_task(self)
        # with several devices, all processes train the same run
        limit = 1 if self.base.devices > 1 else processes or num_gpus(self.hardware) or cpu_count()
        workers = max(1, min(limit, len(missing)))
        jobs = make_executor(executor, workers, device=self.hardware.device, devices=self.base.devices)
        for _, record in jobs.map_unordered(self.train, missing):
            yield record

    def train(self, cell: Cell) -> RunRecord:
        """Return the record of the run of a cell; train the run first if the store does not have its record."""
        return get_or_train(self.config(**cell), self.root, self.hardware)

    def table(self, records: Sequence[RunRecord]) -> ComparisonTable:
        """Return the table of results and costs of each norm, with the recommendation; `records` are those of finished runs."""
        return make_table(Results(records, self.norms, self.batch_sizes), self.step_seconds())

    def fit_budget(self, minutes: float, processes: int | None = None) -> Comparison:
        """Return a copy of this comparison with the number of epochs with which all runs together take about `minutes`.

        Args:
            minutes: wall-clock time for all runs.
            processes: number of runs trained in parallel; None for one per GPU, or on the CPU one per core.

        Raises:
            SpecError: if `minutes` is not positive.
        """
        if minutes <= 0:
            raise SpecError(f"minutes must be above 0; got {minutes}.")
        check_task(self)
        seconds = 0.0
        for (norm, size), step_time in self.step_seconds().items():
            steps_per_epoch = make_trainer(timed_config(self.config(norm, size)), self.hardware).steps_per_epoch
            seconds += step_time * steps_per_epoch * self.seeds
        epochs = int(60 * minutes * (processes or num_gpus(self.hardware) or cpu_count()) / seconds) if seconds else 1
        if self.base.devices > 1:  # all processes use the number of epochs of the main process
            make_fabric(self.base, self.hardware)
            group = Processes(self.base.devices)
            epochs = int(group.sum([float(epochs) if group.is_main else 0.0])[0])
        return replace(self, base=replace(self.base, epochs=max(1, epochs)))

    def step_seconds(self) -> dict[tuple[str, int], float]:
        """Return the seconds per training step by norm and batch size; the store caches them. Norms that fail are left out."""
        seconds: dict[tuple[str, int], float] = {}
        for size in self.batch_sizes:
            configs = [timed_config(self.config(norm, size)) for norm in self.norms]
            times = step_times(configs, self.root, self.hardware)
            seconds |= {(norm, size): times[norm] for norm in self.norms if norm in times}
        return seconds
