"""The function `anynorm.compare`: make a comparison from settings, train the runs that are missing, and return the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from anynorm.errors import SpecError
from anynorm.lab.comparison.comparison import SEEDS, Comparison
from anynorm.lab.comparison.table import ComparisonTable
from anynorm.lab.tasks import task_class
from anynorm.lab.training.config import Config, config_from_dict, hash_sources
from anynorm.lab.training.devices import Hardware
from anynorm.progress import track


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
) -> ComparisonTable:
    """Train a model with each norm at each batch size and recommend which norm to use.

    A script that uses several processes must call this function under `if __name__ == "__main__":`. Arguments that are None have
    the defaults of the task (`Task.comparison_defaults`), unless stated otherwise.

    Args:
        norms: norm specs; "gn:4~bn" alternates gn:4 and bn, "xbn=gn:64" makes XBN blocks.
        batch_sizes: numbers of samples per batch.
        seeds: number of seeds; a significance test needs at least 3.
        task: name of a task or "package.module:Task" (see `anynorm.lab.tasks`).
        data: name of a data set, "folder:PATH", "stream:PATH", "hf:NAME" or "package.module:factory" (see `anynorm.lab.data`).
        model: name of a model or "package.module:factory" (see `anynorm.lab.models`).
        epochs: number of epochs per run.
        minutes: wall-clock time for all runs together; if given, `epochs` is computed from it.
        num_train: number of training images, a random subset that depends on the seed; None for all.
        width: width multiplier of the model; None for the model's default.
        lr: learning rate at batch size 32.
        lr_scaling: how the learning rate is scaled with the batch size: linear, sqrt or none; None for linear.
        attack: comma-separated attacks on the trained networks, such as "pgd:4" or "fgsm,pgd:10". The table then has errors on
            adversarial images, for attacks with norms in eval mode and in train mode. None for the attacks of the task.
        config: other fields of `anynorm.Config`, such as `{"weight_decay": 0.0}`, and options of the task.
        device: auto, cpu, cuda or mps.
        num_workers: number of processes per run that decode streamed images.
        processes: number of runs trained in parallel; None for one per GPU, or on the CPU one per core, with one thread each.
        executor: the executor of the runs, local or ray.
        runs: the folder of the store; finished runs are not trained again.

    Returns:
        A table with one row per norm: test metric (a `anynorm.lab.training.result.Result`), estimation shift, step time and
        memory at each batch size, such as `table["bn"]["error %, batch 8"].mean`. Its `finding` has the recommendation.

    Raises:
        SpecError: if an argument is not valid.
        DataError: if the data or the model cannot be loaded, or the model cannot process the data.
    """
    settings = {"task": task, "data": data, "model": model, "epochs": epochs, "num_train": num_train, "width": width, "lr": lr}
    settings["attack"] = attack
    varied = {"norms": norms, "batch_sizes": batch_sizes, "seeds": seeds, "lr_scaling": lr_scaling}
    hardware = Hardware(device, num_workers=num_workers)
    comparison = make_comparison(settings | varied | dict(config or {}), Path(runs), hardware)
    if minutes is not None:
        comparison = comparison.fit_budget(minutes, processes)
    records = comparison.read()
    missing = len(comparison.missing(records))
    new_records = list(track(comparison.run(records, processes, executor), "comparing norms", missing))
    return comparison.table([*records, *new_records])


def make_comparison(settings: Mapping[str, Any], root: Path, hardware: Hardware) -> Comparison:
    """Make a comparison from settings.

    Args:
        settings: norms, batch_sizes, seeds and lr_scaling of `Comparison`, fields of `Config`, and options of the task. Settings
            that are missing or None have the defaults of the task (`Task.comparison_defaults`).
        root: the folder of the store.
        hardware: the hardware to train on.

    Raises:
        SpecError: if a setting does not exist or its value is not valid.
    """
    defaults = task_class(str(settings.get("task", Config.task))).comparison_defaults
    given = {name: value for name, value in settings.items() if value is not None}
    return Comparison(
        norms=given.pop("norms", defaults.norms),
        batch_sizes=given.pop("batch_sizes", defaults.batch_sizes),
        seeds=given.pop("seeds", SEEDS),
        lr_scaling=given.pop("lr_scaling", defaults.lr_scaling),
        base=make_base(given, defaults.base),
        root=root,
        hardware=hardware,
    )


def make_base(settings: Mapping[str, Any], defaults: Config | None = None) -> Config:
    """Return the configuration that all runs of a comparison share, including the hash of its sources.

    Args:
        settings: fields of `Config`, and options of the task.
        defaults: the values of fields and options that `settings` does not have; None for the defaults of `Config`.

    Raises:
        SpecError: if a setting does not exist, or differs between the runs of a comparison (norm, batch_size, seed).
    """
    for name, argument in {"norm": "norms", "batch_size": "batch_sizes", "seed": "seeds"}.items():
        if name in settings:
            raise SpecError(f"{name} differs between the runs of a comparison; use {argument} instead.")
    defaults = defaults or Config()
    task = task_class(str(settings.get("task", Config.task)))
    known = {each.name for each in fields(Config)}
    options = {name: value for name, value in settings.items() if name not in known and name in task.options_class.defaults()}
    own = {name: value for name, value in settings.items() if name not in options and name != "options"}
    values = {**task.options_of(defaults).changed(), **options, **settings.get("options", {})}
    typed = task.options_class.from_values(values, task.__name__)
    base = config_from_dict({each.name: getattr(defaults, each.name) for each in fields(Config)} | own | {"options": typed})
    return replace(base, source_hash=hash_sources(base))
