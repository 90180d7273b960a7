"""Executors: run independent jobs in processes of this machine (`local`) or on a Ray cluster (`cluster`)."""

from __future__ import annotations

from anynorm.errors import DataError
from anynorm.lab.training.executors.cluster import RayExecutor
from anynorm.lab.training.executors.executor import MAX_ATTEMPTS, Executor, Job, WorkerError
from anynorm.lab.training.executors.local import LocalExecutor
from anynorm.lab.training.provenance import cpu_count

__all__ = ["MAX_ATTEMPTS", "Executor", "Job", "LocalExecutor", "RayExecutor", "WorkerError", "make_executor"]

EXECUTORS = ("local", "ray")


def make_executor(name: str = "local", workers: int | None = None, *, device: str = "auto", devices: int = 1) -> Executor:
    """Return an executor by name.

    Args:
        name: "local" or "ray".
        workers: number of workers; None for one per core.
        device: the device of the jobs: auto, cpu, cuda or mps.
        devices: number of devices per job.

    Raises:
        DataError: if the name is unknown.
    """
    if name not in EXECUTORS:
        raise DataError(f"executor must be one of {' '.join(EXECUTORS)}; got {name!r}.")
    workers = workers or cpu_count()
    return RayExecutor(workers, device, devices) if name == "ray" else LocalExecutor(workers)
