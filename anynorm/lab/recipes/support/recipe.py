"""A recipe reproduces one table or figure of a paper: settings, cells to measure, controls, claims and plots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic

from anynorm.errors import DataError
from anynorm.lab.recipes.support.claims import Check, Claim
from anynorm.lab.recipes.support.controls import Control, ControlResult, Learned
from anynorm.lab.recipes.support.design import design_hash, differing_names
from anynorm.lab.recipes.support.executed_code import measure_version, training_version
from anynorm.lab.recipes.support.measure_cell import Job, measure_cell
from anynorm.lab.recipes.support.record import SUFFIX, RecipeRecord, cell_key, read_record
from anynorm.lab.recipes.support.settings import SettingsT, configs_in, map_configs
from anynorm.lab.recipes.support.settings_json import to_json
from anynorm.lab.recipes.support.sides import check_controls
from anynorm.lab.recipes.support.verdicts import Verdict, judge, until_complete, violated
from anynorm.lab.tasks import task_class
from anynorm.lab.training.code_version import cpu_family
from anynorm.lab.training.config import Config
from anynorm.lab.training.executors import Executor, LocalExecutor
from anynorm.lab.training.provenance import provenance
from anynorm.lab.training.sweep import Cell, Measurement
from anynorm.progress import track
from anynorm.table import Table

SMOKE, DESK = "smoke", "desk"
"""The preset that takes seconds and only checks that the code works, and the one that demonstrates a recipe in minutes."""
PRESETS = (SMOKE, DESK, "night", "paper")
CHANGED = "-"
"""What the name of a preset has before the hash of the settings that `--set` changed."""
RUNS = Path("runs/recipes")
"""Default folder of the run store."""
FIRST_PILOT_SEED = 1000
"""Seeds from this one on are for choosing settings; they are never judged."""


@dataclass(frozen=True)
class Recipe(Generic[SettingsT]):
    """A recipe: the measurements of one table or figure, and the claims of the paper about them.

    Args:
        name: the name of the recipe's module.
        presets: settings by preset, all of one class.
        cells: a function that returns the cells to measure with given settings, see `anynorm.lab.training.sweep`.
        measure: a function `measure(settings, cell, runs)` that returns the metrics of a cell; `runs` is the folder of the run
            store. It is called in worker processes, so it must be picklable.
        claims: a function that returns the claims that can be tested with given settings, and the checks.
        plot: a function `plot(record, path)` that writes plots to `path` plus an extension and returns their paths.
        tables: a function that returns the tables of a record.
        controls: a function that returns what must be right before the claims are tested.
        version: version of the measurement: increase it if the numbers of a cell get another meaning.
    """

    name: str
    presets: Mapping[str, SettingsT]
    cells: Callable[[SettingsT], list[Cell]]
    measure: Callable[[SettingsT, Cell, Path], Measurement]
    claims: Callable[[SettingsT], Sequence[Claim | Check]]
    plot: Callable[[RecipeRecord[SettingsT], Path], list[Path]]
    tables: Callable[[RecipeRecord[SettingsT]], list[Table]] = lambda _: []
    controls: Callable[[SettingsT], Sequence[Control]] = lambda _: ()
    version: int = 1

    def settings(self, preset: str) -> SettingsT:
        """Return the settings of a preset.

        Raises:
            DataError: if the preset does not exist.
        """
        if preset not in self.presets:
            raise DataError(f"recipe {self.name!r} has no preset {preset!r}. Usable: {' '.join(self.presets)}.")
        return self.presets[preset]

    def read(self, path: Path) -> RecipeRecord[SettingsT]:
        """Read a record of this recipe, see `read_record`."""
        return read_record(path, type(next(iter(self.presets.values()))))

    def path(self, preset: str, folder: Path, *, pilot: bool = False) -> Path:
        """Return the path of the record of a preset, or of its pilot."""
        return folder / f"{self.name}.{preset}{'.pilot' if pilot else ''}{SUFFIX}"

    def open_record(self, preset: str, folder: Path, *, pilot: bool = False) -> RecipeRecord[SettingsT]:
        """Return the record of a preset, or an empty one if its file does not exist.

        Raises:
            DataError: if the preset does not exist, or the record has other settings, versions or cells.
        """
        settings, path = self.settings(preset), self.path(preset, folder, pilot=pilot)
        if not path.exists():
            return RecipeRecord(self.name, preset, settings, self.design(settings), self._versions(settings))
        record = self.read(path)
        differing = list(differing_names(to_json(record.settings), to_json(settings)))
        if differing := [*differing, *self._changed_versions(record)]:
            raise _other_design(record, path, differing)
        if not pilot and (unknown := record.latest.keys() - {cell_key(cell) for cell in self.cells(settings)}):
            raise DataError(f"{path} has {len(unknown)} cells that preset {preset!r} does not have, such as {min(unknown)}.")
        return record

    def run(
        self,
        preset: str,
        folder: Path,
        executor: Executor | None = None,
        runs: Path = RUNS,
        *,
        seeds: int | None = None,
        pilot: bool = False,
    ) -> RecipeRecord[SettingsT]:
        """Measure the cells that are not in the record in `folder`, seed by seed, and append each when it is measured.

        An interrupted call can be resumed, and several may run at once: none measures a cell that another is measuring. Cells of
        an unfinished seed that another version of the code or another kind of processor measured are measured again, because the
        two sides of a comparison must not differ in them. The run store has one folder per version of the code that trains and
        kind of processor.

        Args:
            preset: the name of a preset.
            folder: the folder of the record `NAME.PRESET.jsonl`.
            executor: the executor that measures the cells; by default, they are measured in this process.
            runs: the folder of the run store, in which recipes share training runs.
            seeds: number of seeds to measure now; None for all of the design.
            pilot: whether to measure seeds from 1000 on, with validation data where the task can hold out training images, in a
                record of their own that is never judged.

        Raises:
            DataError: if the preset does not exist, the design of the record differs from that of the preset, there are fewer
                seeds in the design, or a measurement lacks the number of a control.
        """
        executor = executor or LocalExecutor(1)
        record, path = self.open_record(preset, folder, pilot=pilot), self.path(preset, folder, pilot=pilot)
        pending = self.pending(record, path, seeds, pilot=pilot)
        code = measure_version(self.measure, record.settings)
        # the provenance of the code that is loaded now: files may change during the run
        source = provenance() | {"code": code, "cpu": cpu_family(), "processes": executor.workers, "threads": 1}
        settings = with_validation(record.settings) if pilot else record.settings
        controls = tuple(control for control in self.controls(settings) if isinstance(control, Learned))
        # runs of one version of the code on one kind of processor: the two sides of a pair must not mix them
        store = runs / f"{training_version(settings)}-{cpu_family().replace(' ', '-')}"
        job = Job(partial(self.measure, settings), store, replace(record, cells=[]), path, source, controls)
        for _ in track(executor.map_unordered(partial(measure_cell, job), pending), self.name, len(pending)):
            pass
        record = self.read(path) if path.exists() else record
        order = {cell_key(cell): position for position, cell in enumerate(self._cells(record.settings, pilot=pilot))}
        record.cells = sorted(record.latest.values(), key=lambda cell: order.get(cell_key(cell.cell), len(order)))
        return record

    def pending(
        self, record: RecipeRecord[SettingsT], path: Path, seeds: int | None = None, *, pilot: bool = False
    ) -> list[Cell]:
        """Return the cells to measure on this machine, seed by seed.

        Args:
            record: the record.
            path: its file.
            seeds: number of seeds; None for all of the design.
            pilot: whether the seeds are those of a pilot.

        Raises:
            DataError: if the design has fewer seeds, or the record was begun with other claims or controls.
        """
        if seeds is not None and seeds > record.settings.seeds and not pilot:
            raise DataError(
                f"--seeds must be at most {record.settings.seeds}, the number of seeds of preset {record.preset!r}; got {seeds}. "
                "The number of seeds is a part of the design: it is not chosen after looking at results."
            )
        origin = (measure_version(self.measure, record.settings), cpu_family())
        latest = record.latest
        settings = record.settings if seeds is None else replace(record.settings, seeds=seeds)
        by_seed: dict[int, list[Cell]] = {}
        for cell in self._cells(settings, pilot=pilot):
            by_seed.setdefault(cell["seed"], []).append(cell)
        result: list[Cell] = []
        for seed in sorted(by_seed):
            measured = [latest.get(cell_key(cell)) for cell in by_seed[seed]]
            origins = {each.origin for each in measured if each is not None}
            if None in measured or len(origins) > 1:
                pairs = zip(by_seed[seed], measured, strict=True)
                result += [cell for cell, each in pairs if each is None or each.origin != origin]
        if result and not pilot and record.design != self.design(record.settings):
            raise _other_design(record, path, ["claims or controls"])
        return result

    def judge(self, record: RecipeRecord[SettingsT]) -> list[Verdict]:
        """Return the verdict on each claim, in the order of the claims.

        A claim of which seeds of the design are missing is undecided: looking after each seed would find differences by chance.
        """
        claims = [claim for claim in self.claims(record.settings) if not isinstance(claim, Check)]
        verdicts = judge(claims, self.controls(record.settings), record.rows, record.settings.num_test)
        verdicts = until_complete(verdicts, record.rows, self.cells(record.settings))
        exploratory = record.design != self.design(record.settings)
        return [replace(verdict, exploratory=exploratory) for verdict in verdicts]

    def check_controls(self, record: RecipeRecord[SettingsT]) -> list[ControlResult]:
        """Return the outcome of each control."""
        claims = [claim for claim in self.claims(record.settings) if not isinstance(claim, Check)]
        return check_controls(claims, self.controls(record.settings), record.rows)

    def checks(self, record: RecipeRecord[SettingsT]) -> dict[str, bool]:
        """Return for each check whether it is passed, by its statement."""
        checks = [claim for claim in self.claims(record.settings) if isinstance(claim, Check)]
        failing = violated(checks, record.rows)
        return {check.statement: check not in failing for check in checks}

    def conclusion(self, record: RecipeRecord[SettingsT]) -> str:
        """Return what to know about a record before reading its verdicts: preset, time, commits, failures, and limits."""
        commits = " ".join(record.values_of_provenance("commit")) or "unknown"
        parts = [f"{self.name}, preset {record.preset}: {record.minutes:.3g} minutes of one core, commit {commits}."]
        parts.append(record.failure_summary)
        if record.preset == SMOKE:
            parts.append("The smoke preset only checks that the code works: its verdicts mean nothing.")
        elif CHANGED in record.preset:
            parts.append("Settings were changed by --set: these verdicts are exploratory.")
        elif changed := self._changed_versions(record):
            parts.append(f"The numbers have another meaning now ({', '.join(changed)}): measure them again.")
        elif record.design != self.design(record.settings):
            parts.append("Claims or controls were changed after measuring began: these verdicts are exploratory.")
        return " ".join(filter(None, parts))

    def design(self, settings: SettingsT) -> str:
        """Return a hash of what must not change once measuring has begun: settings, claims with δ, and controls."""
        return design_hash(settings, self.claims(settings), self.controls(settings))

    def _versions(self, settings: SettingsT) -> dict[str, int]:
        """Return the versions of the measurement and of the tasks of the settings."""
        tasks = {config.task: task_class(config.task).version for config in configs_in(settings)}
        return {"recipe": self.version} | {f"task {name}": version for name, version in tasks.items()}

    def _changed_versions(self, record: RecipeRecord[SettingsT]) -> list[str]:
        """Return the versions that a record has and that are others now. Records of anynorm 0.3 and before have none."""
        known = self._versions(record.settings) if record.versions else {}
        return [f"version of {name}" for name in differing_names(record.versions, known)]

    def _cells(self, settings: SettingsT, *, pilot: bool) -> list[Cell]:
        first = FIRST_PILOT_SEED if pilot else 0
        return [cell | {"seed": cell["seed"] + first} for cell in self.cells(settings)]


def with_validation(settings: SettingsT) -> SettingsT:
    """Return settings in which networks are tested on held-out training images, in tasks that can hold out images."""

    def hold_out(config: Config) -> Config:
        return replace(config, num_validation=settings.num_validation) if task_class(config.task).has_validation else config

    changed: SettingsT = map_configs(settings, hold_out)
    return changed


def _other_design(record: RecipeRecord[Any], path: Path, differing: Sequence[str]) -> DataError:
    return DataError(
        f"{path} was begun with another design than preset {record.preset!r} has now ({', '.join(differing)}), so its "
        f"{len(record.cells)} cells cannot be completed. Move it away to measure again, or choose another folder."
    )
