"""Measure cells by training runs: complete the configuration of a cell, train it, and return the metrics of a row.

Runs are kept in a store, so that recipes share equal runs and interrupted runs can be resumed. Runs are trained on a GPU if the
machine has one. A run on several devices has one process per device, started by torchrun.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from anynorm.errors import DataError
from anynorm.lab.data.names import path_of
from anynorm.lab.recipes.support.settings import Training
from anynorm.lab.tasks import task_class
from anynorm.lab.tasks.run import get_or_train
from anynorm.lab.training.config import Config, config_from_dict, hash_sources
from anynorm.lab.training.devices import Hardware, check_gpus
from anynorm.lab.training.provenance import cpu_count
from anynorm.lab.training.record import RunRecord
from anynorm.lab.training.store import Store
from anynorm.lab.training.sweep import Measurement

_hash_sources = lru_cache(hash_sources)
"""`hash_sources`, cached because a folder of images may have a million files."""


def make_config(config: Config, training: Training | None = None) -> Config:
    """Return the configuration of a run, with data and code that are identified.

    Args:
        config: the configuration of a cell.
        training: how the cell is trained, see `Training.complete`; None if the configuration is complete.
    """
    if training is not None:
        config = training.complete(config)
    config = replace(config, data=with_full_path(config.data))
    return replace(config, source_hash=_hash_sources(Config(data=config.data, model=config.model)))


def options_of(config: Config) -> Any:
    """Return the options of the task of a configuration, with their defaults."""
    return task_class(config.task).options_of(config)


def with_full_path(data: str) -> str:
    """Return the name of a data set, with the full path if it is a folder that exists only in the data directory.

    Args:
        data: `Config.data`. The path of a folder is relative to the working directory or to `anynorm.lab.data.download.data_dir`.
    """
    prefix, _, written = data.partition(":")
    path = path_of(data)
    return f"{prefix}:{path}" if path is not None and path.is_dir() and path != Path(written) else data


def train_cell(config: Config, training: Training, runs: Path) -> Measurement:
    """Return the accuracies of a cell; train its network first if the store does not have the record.

    Args:
        config: the configuration of the cell.
        training: base batch size, and number of evaluations over which the median is taken.
        runs: the folder of the run store.
    """
    record = train_run(make_config(config, training), runs)
    return run_metrics(record, training.median_of_last)


def train_run(config: Config, runs: Path) -> RunRecord:
    """Return the record of a run; train the run first if the store does not have its record.

    Args:
        config: the configuration of the run.
        runs: the folder of the run store.

    Raises:
        DataError: if data are missing, this machine has fewer GPUs than the run has devices, or a process of the run fails.
    """
    # each device has its own workers that decode streamed images; one core per device is left for training
    hardware = Hardware(num_workers=max(1, cpu_count() // config.devices - 1))
    if config.devices > 1 and not Store(runs).is_valid(config.id):
        check_gpus(config, hardware)
        task_class(config.task).prepare(config)  # reports missing data once, not in each process
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(config.devices)]
        arguments = [json.dumps(asdict(config)), str(runs.absolute()), str(hardware.num_workers)]
        done = subprocess.run([sys.executable, *torchrun, "-m", __name__, *arguments], check=False)
        if done.returncode:
            raise DataError(f"the {config.devices} processes of run {config.id} failed; see their messages above.")
        return Store(runs).record(config.id)
    return get_or_train(config, runs, hardware)


def run_metrics(record: RunRecord, median_of_last: int = 1) -> Measurement:
    """Return the accuracies of a run for a row of a recipe.

    Args:
        record: the record of the run in the run store.
        median_of_last: number of last evaluations over which the median of the test accuracy is taken.

    Returns:
        Accuracies in percent (None if the run failed), and `run_outcome`.
    """
    errors = [point["test_error"] for point in record.curve[-median_of_last:]]
    return {
        "accuracy": round(100 - statistics.median(errors), 3) if record.done else None,
        "train_accuracy": last_accuracy(record, "train_error"),
        **trace(record),
        **run_outcome(record),
    }


def trace(record: RunRecord) -> Measurement:
    """Return what a row keeps of a classification run besides its accuracies.

    Returns:
        `hits`, the test images that were classified correctly (see `items_of` for other metrics), and `curve`, [epoch, training
        error, test error] in % for each evaluation.
    """
    points = [[point["epoch"], point.get("train_error"), point.get("test_error")] for point in record.curve]
    curve = [[None if value is None else round(value, 2) for value in point] for point in points]
    return {"curve": curve} | ({"hits": record.items["error"]} if "error" in record.items else {})


def items_of(record: RunRecord, columns: Mapping[str, str]) -> Measurement:
    """Return `items`, the values of test items by column of a row, without columns for which the run has none.

    Args:
        record: the record of the run in the run store.
        columns: the metric of each column, without the prefix test_. The items of an error are those of the accuracy.
    """
    return {"items": {column: record.items[metric] for column, metric in columns.items() if metric in record.items}}


def last_accuracy(record: RunRecord, error: str) -> float | None:
    """Return 100 − the last value of an error in percent; None if the run failed or does not have the error."""
    value = record.metrics.get(error)
    return round(100 - value, 3) if record.done and value is not None else None


def run_outcome(record: RunRecord) -> Measurement:
    """Return what every row of a run has: the reason of a failure ("" if it did not fail), seconds, and commit."""
    return {
        "failure": "" if record.done else record.note,
        "seconds": record.seconds,
        "commit": record.provenance["commit"],
    }


def mean_weights(record: RunRecord, names: Iterable[str]) -> dict[str, float | None]:
    """Return the learned mixing weights of a run, means over its layers; None if the run failed.

    Args:
        record: the record of the run in the run store.
        names: names of weights, such as "mean_bn" and "var_bn".
    """
    layers = record.importance or ()
    return {name: round(statistics.fmean(layer[name] for layer in layers), 4) if layers else None for name in names}


if __name__ == "__main__":  # a process of a run on several devices, started by `train_run`
    torch.set_num_threads(1)
    get_or_train(config_from_dict(json.loads(sys.argv[1])), Path(sys.argv[2]), Hardware(num_workers=int(sys.argv[3])))
