"""Workers on a Ray cluster, which may have many machines."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from anynorm.errors import DataError
from anynorm.lab.training.executors.executor import MAX_ATTEMPTS, Job, WorkerError


@dataclass(frozen=True)
class RayExecutor:
    """Executor that runs jobs on the Ray cluster at RAY_ADDRESS, or on a temporary cluster on the cores of this machine.

    Workers import the same code and write to the same paths, so code, data and runs must be on a disk that supports file locks
    and that all machines mount under the same path. A job on GPUs has them to itself.

    Args:
        workers: number of workers of a temporary cluster.
        device: the device of the jobs; auto for cuda if the cluster has GPUs, else cpu.
        devices: number of GPUs per job, if the jobs run on cuda.
    """

    workers: int
    device: str = "auto"
    devices: int = 1

    def map_unordered(self, job: Job, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield (item, job(item)) for every item, as results arrive.

        Raises:
            DataError: if Ray is not installed, or no machine of the cluster has the GPUs of a job.
            WorkerError: after all other results, if the worker of a job died in all attempts.
        """
        ray = _import_ray()
        if not items:
            return
        temporary = not ray.is_initialized()
        if temporary:
            ray.init(**_ray_options(self.workers))
        running: dict[Any, Any] = {}
        failure: WorkerError | None = None
        try:
            gpus = self._gpus_per_job(ray.nodes())
            remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=MAX_ATTEMPTS - 1)(_run_on_cluster)
            running = {remote.remote(str(Path.cwd()), _environment(), job, item): item for item in items}
            while running:
                (done,), _ = ray.wait(list(running), num_returns=1)
                item = running.pop(done)
                try:
                    result = ray.get(done)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from None
                except ray.exceptions.RayError as error:
                    failure = failure or WorkerError(item, str(error).splitlines()[0])
                else:
                    yield item, result
        finally:
            for task in running:
                ray.cancel(task, force=True)
            if temporary:
                ray.shutdown()
        if failure is not None:
            raise failure

    def _gpus_per_job(self, nodes: list[dict[str, Any]]) -> int:
        """Return the number of GPUs that a job reserves; Ray hides all other GPUs from the job."""
        available = max((int(node["Resources"].get("GPU", 0)) for node in nodes if node["Alive"]), default=0)
        if self.device not in ("auto", "cuda") or (self.device == "auto" and not available):
            return 0
        if available < self.devices:  # Ray would wait for such a machine
            raise DataError(
                f"a run on cuda needs a machine with at least {self.devices} GPUs; "
                f"the machines of the Ray cluster have at most {available}."
            )
        return self.devices


def _run_on_cluster(folder: str, environment: dict[str, str], job: Job, item: Any) -> Any:
    """Run a job with the working directory and the ANYNORM_ environment variables of the process that submitted it."""
    try:
        os.chdir(folder)
    except OSError:
        message = (
            f"{platform.node()} has no folder {folder}. Use a disk that all machines of the cluster mount under the same path."
        )
        raise DataError(message) from None
    os.environ.update(environment)
    torch.set_num_threads(1)
    return job(item)


def _environment() -> dict[str, str]:
    """Return the environment variables that start with ANYNORM_, which Ray does not pass on to workers."""
    return {name: value for name, value in os.environ.items() if name.startswith("ANYNORM_")}


def _ray_options(workers: int) -> dict[str, Any]:
    """Return the arguments of `ray.init` to connect to the cluster at RAY_ADDRESS, or to start a cluster."""
    paths = os.pathsep.join(path for path in sys.path if path)
    variables = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    options: dict[str, Any] = {"log_to_driver": False, "runtime_env": {"env_vars": variables}}
    if os.environ.get("RAY_ADDRESS"):
        return options
    return options | {"num_cpus": workers, "include_dashboard": False}


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise DataError("--executor ray needs Ray: pip install 'anynorm[cluster]'.") from None
    return ray
