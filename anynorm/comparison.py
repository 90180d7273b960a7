"""Which norm suits a model, its data and its batch size: norms × batch sizes × seeds under an equal budget.

Runs are those of a store: what is there is not run again, and a comparison that was stopped goes on.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from anynorm.data import ImageDataset, load_dataset
from anynorm.errors import AnynormError, DataError, SpecError
from anynorm.models import build_model
from anynorm.progress import track
from anynorm.surgery.find import find_norms
from anynorm.table import Table
from anynorm.training.config import Config, config_from_dict, hash_sources
from anynorm.training.executors import LocalExecutor, make_executor
from anynorm.training.provenance import cpu_count
from anynorm.training.run import run
from anynorm.training.statistics import LEVEL, mean_sd, paired_t_test
from anynorm.training.store import ENDED, Store
from anynorm.training.timing import step_times
from anynorm.training.trainer import Trainer

DEFAULT = Config(model="mlp", num_train=128, epochs=20, momentum=0.0, weight_decay=0.0, schedule="constant", lr=0.1)
"""The xbn paper's network on few digits, about a second a run: small enough to wait for, deep enough for norms to matter."""
NORMS = ("bn", "gn:4~bn", "sn", "hn", "bgn")
BATCH_SIZES = (4, 32)
SCALINGS: dict[str, Callable[[float], float]] = {"linear": lambda ratio: ratio, "sqrt": math.sqrt, "none": lambda _: 1.0}


@dataclass(frozen=True)
class Plan:
    """What is compared.

    Args:
        base: everything but norm, batch size and seed.
        scaling: how the learning rate follows the batch size; `base.lr` is that of `base.batch_size`.
    """

    base: Config = DEFAULT
    norms: Sequence[str] = NORMS
    batch_sizes: Sequence[int] = BATCH_SIZES
    seeds: int = 5
    scaling: str = "linear"
    root: Path = field(default_factory=lambda: Path("runs"))

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            raise SpecError(f"scaling={self.scaling!r} is none of {' '.join(SCALINGS)}.")
        if not self.norms or not self.batch_sizes or self.seeds < 1:
            raise SpecError("A comparison wants at least one norm, one batch size and one seed.")
        if isinstance(self.norms, str):
            raise SpecError(f"norms={self.norms!r} is one text; give a list of norms.")
        object.__setattr__(self, "norms", list(dict.fromkeys(self.norms)))
        object.__setattr__(self, "batch_sizes", list(dict.fromkeys(self.batch_sizes)))

    def config(self, norm: str, batch_size: int, seed: int = 0) -> Config:
        """Give the configuration of a run."""
        rate = self.base.lr * SCALINGS[self.scaling](batch_size / self.base.batch_size)
        return replace(self.base, norm=norm, batch_size=batch_size, seed=seed, lr=rate)

    def configs(self) -> list[Config]:
        """List all runs, seed by seed, so that every norm has an answer early."""
        return [self.config(norm, size, seed) for seed in range(self.seeds) for size in self.batch_sizes for norm in self.norms]


def compare(
    norms: Sequence[str] = NORMS,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    seeds: int = 5,
    *,
    root: Path | str = "runs",
    scaling: str = "linear",
    processes: int | None = None,
    **settings: Any,
) -> Table:
    """Compare norms on a model and data, and say which to take.

    Args:
        root: the folder that runs are kept in; those that are there are not run again.
        scaling: how the learning rate, given for batch 32, follows the batch size: linear, sqrt or none.
        processes: how many at once, of one thread each; as many as cores, if not given. Scripts that start several must be
            guarded by `if __name__ == "__main__":`.
        settings: of `anynorm.training.config.Config`: data, model, epochs, images, rate, …
    """
    plan = Plan(base_of(settings), norms, batch_sizes, seeds, scaling, Path(root))
    for _ in track(run_all(plan, processes), "comparing", len(missing(plan))):
        pass
    return summary(plan)


def base_of(settings: dict[str, Any]) -> Config:
    """Complete settings: data and model are the default's where they are not given, and so is the training of that pair."""
    pair = {"data": DEFAULT.data, "model": DEFAULT.model}
    usual = asdict(DEFAULT) if all(settings.get(name, value) == value for name, value in pair.items()) else pair
    for name in ("norm", "batch_size", "seed"):
        if name in settings:
            raise SpecError(f"{name} is what a comparison varies: give norms, batch sizes and seeds.")
    config = config_from_dict(usual | settings)
    return replace(config, source_hash=hash_sources(config))


def missing(plan: Plan) -> list[Config]:
    """List the runs that have not ended."""
    store = Store(plan.root)
    ended = {row["id"] for row in store.rows() if row["status"] in ENDED and store.is_valid(row["id"])}
    return [config for config in plan.configs() if config.id not in ended]


def fit_budget(plan: Plan, minutes: float, processes: int | None = None) -> Plan:
    """Choose the epochs so that all runs together take about so many minutes; each trains equally long."""
    if minutes <= 0:
        raise SpecError(f"{minutes} minutes are no time to compare in.")
    data = load_dataset(plan.base.data, plan.base.image_size, skip_unreadable=plan.base.skip_unreadable)
    seconds = 0.0
    for size in plan.batch_sizes:
        configs = _alone(plan, size)
        steps = Trainer(configs[0], data).steps_per_epoch
        seconds += sum(step_times(configs, data).values()) * steps * plan.seeds
    epochs = max(1, int(60 * minutes * (processes or cpu_count()) / seconds)) if seconds else 1
    return replace(plan, base=replace(plan.base, epochs=epochs))


def _alone(plan: Plan, size: int) -> list[Config]:
    """List a run of each norm as one process would do it."""
    return [replace(plan.config(norm, size), devices=1, sync=False) for norm in plan.norms]


def run_all(plan: Plan, processes: int | None = None, where: str = "local") -> Iterator[Config]:
    """Run what is missing, a process a core of one thread each; give each configuration as it ends.

    Args:
        where: the name of an executor.
    """
    left = missing(plan)
    data = load_dataset(
        plan.base.data, plan.base.image_size, skip_unreadable=plan.base.skip_unreadable
    )  # said to be missing, or downloaded, once
    check_model(plan, data)
    count = 1 if plan.base.devices > 1 else min(processes or cpu_count(), len(left))
    alone = partial(run, root=plan.root, data=data)
    at_once = partial(run, root=plan.root)
    chosen = make_executor(where, max(count, 1))
    job = alone if chosen == LocalExecutor(1) else at_once
    yield from (config for config, ended in chosen.map_unordered(job, left) if ended)
    while missing(plan):  # another comparison has taken some of them on
        time.sleep(1)
        yield from (config for config, ended in LocalExecutor(1).map_unordered(alone, missing(plan)) if ended)


def check_model(plan: Plan, data: ImageDataset) -> None:
    """Run the plain model on a batch of each size: what cannot work at all is told before the first run."""
    for size in plan.batch_sizes:
        config = replace(plan.base, batch_size=size, devices=1, sync=False)
        model = build_model(config.model, data.shape, config.width)
        if not find_norms(model):
            raise DataError(f"{config.model} has no norm among its modules: there is nothing to compare.")
        try:
            x, _ = Trainer(replace(config, norm="bn"), data).batch(0, 0)
            logits = model.eval()(x)
        except AnynormError:
            raise
        except Exception as error:  # whatever somebody's model raises
            raise DataError(f"{config.model} cannot be run on {config.data}: {type(error).__name__}: {error}.") from error
        if not isinstance(logits, torch.Tensor) or logits.shape != (size, data.num_classes):
            got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
            raise DataError(
                f"{config.model} gave {got} for {size} images of {data.num_classes} classes; ({size}, {data.num_classes}) is wanted."
            )


def outcomes(plan: Plan) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Read the records of what has ended, by norm and batch size, in the order of the seeds."""
    store = Store(plan.root)
    ended = {row["id"] for row in store.rows() if row["status"] in ENDED and store.is_valid(row["id"])}
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for config in plan.configs():
        if config.id in ended:
            found.setdefault((config.norm, config.batch_size), []).append(store.record(config.id))
    return found


def summary(plan: Plan) -> Table:
    """Tell the test error of each norm at each batch size, what it step_times, and which to take."""
    found = outcomes(plan)
    data = load_dataset(plan.base.data, plan.base.image_size, skip_unreadable=plan.base.skip_unreadable)
    rows = []
    reference = "bn" if "bn" in plan.norms else plan.norms[0]
    times = {size: step_times(_alone(plan, size), data) for size in plan.batch_sizes}
    for norm in plan.norms:
        row: dict[str, Any] = {"norm": norm}
        for size in plan.batch_sizes:
            records = found.get((norm, size), [])
            row[f"error %, batch {size}"] = told(records)
            row[f"shift, batch {size}"] = _worst_shift(records)
            row[f"step, batch {size}"] = _ratio(times[size].get(norm), times[size].get(reference))
            row[f"memory, batch {size}"] = _ratio(_bytes(records), _bytes(found.get((reference, size), [])))
        rows.append(row)
    advice = [recommend(plan, found, size) for size in plan.batch_sizes]
    words = f"The shift is the worst of a network's norms; step time and saved memory are relative to {reference}."
    return Table(rows, " ".join([*advice, words]))


def told(records: list[dict[str, Any]]) -> str:
    """Write mean ± sd of the test errors; runs that diverged are told, not dropped."""
    return mean_sd([record["test_error"] if record["status"] == "done" else None for record in records], ".1f", ".1f")


def recommend(plan: Plan, found: dict[tuple[str, int], list[dict[str, Any]]], size: int) -> str:
    """Say which norm to take at a batch size, and how sure that is: every other is compared with it, seed by seed."""
    whole = {norm: found.get((norm, size), []) for norm in plan.norms}
    errors = {
        norm: [record["test_error"] for record in records]
        for norm, records in whole.items()
        if records and all(record["status"] == "done" for record in records)
    }
    if not any(whole.values()):
        return f"At batch {size} no run has ended."
    if not errors:
        return f"At batch {size} every norm failed."
    best = min(errors, key=lambda norm: statistics.fmean(errors[norm]))
    said = f"At batch {size}: {best} ({statistics.fmean(errors[best]):.1f} %)"
    others = [norm for norm in errors if norm != best and len(errors[norm]) == len(errors[best])]
    if len(errors[best]) < 3:
        return f"{said}; fewer than three seeds say nothing about how sure that is."
    close = _not_told_apart({norm: paired_t_test(errors[norm], errors[best]) for norm in others})
    if not others:
        return f"{said}."
    beaten = len(others) - len(close)
    sure = f"better than {beaten} of {len(others)} others beyond chance (p < {LEVEL})"
    return f"{said}, {sure}" + (f"; {', '.join(close)} may be as good." if close else ".")


def _not_told_apart(chances: dict[str, float]) -> list[str]:
    """List those that may be as good, after Holm: of k comparisons, the surest must be k times as sure as one alone."""
    ordered = sorted(chances, key=lambda norm: chances[norm])
    for done, norm in enumerate(ordered):
        if chances[norm] * (len(ordered) - done) >= LEVEL:
            return [one for one in chances if one in ordered[done:]]
    return []


def _worst_shift(records: list[dict[str, Any]]) -> float | None:
    """Give the largest estimation shift of a network's norms, the mean of the seeds; None where none keeps statistics."""
    worst = [max(row["shift"] or 0.0 for row in record["shift"]) for record in records if record.get("shift")]
    return statistics.fmean(worst) if worst else None


def _bytes(records: list[dict[str, Any]]) -> float | None:
    return next((record["saved_bytes"] for record in records if record.get("saved_bytes")), None)


def _ratio(value: float | None, reference: float | None) -> float | None:
    return value / reference if value and reference else None
