"""Executors: run independent jobs in processes of this machine, or on a Ray cluster.

A job is a picklable function of one picklable argument. Each call runs in a single-threaded process, and results are yielded as
they arrive. If a worker dies (killed, out of memory, machine lost), its job is started again, up to `MAX_ATTEMPTS` attempts in
total; a job that trains a run resumes from the checkpoint of the run. A job whose worker died in all attempts is reported after
all other jobs have finished.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

import torch

from anynorm.errors import DataError
from anynorm.lab.training.devices import WORKER_VARIABLE
from anynorm.lab.training.provenance import cpu_count

MAX_ATTEMPTS = 3
Job = Callable[[Any], Any]


class WorkerError(DataError):
    """The worker process of a job died in all attempts."""

    def __init__(self, item: Any, reason: str) -> None:
        super().__init__(
            f"{item} failed after {MAX_ATTEMPTS} attempts: {reason}. Run the command again to resume; fewer --processes need "
            "less memory."
        )


class Executor(Protocol):
    """An object that runs jobs in worker processes."""

    @property
    def workers(self) -> int:
        """Maximum number of jobs that run at the same time."""

    def map_unordered(self, job: Job, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield (item, job(item)) for every item, as results arrive.

        If a job raises an exception, it is raised at once, and all other jobs are stopped.

        Raises:
            WorkerError: after all other results, if the worker of a job died in all attempts.
        """


@dataclass(frozen=True)
class LocalExecutor:
    """Executor that runs jobs in processes of this machine; with one worker, in this process."""

    workers: int

    def map_unordered(self, job: Job, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield (item, job(item)) for every item, as results arrive.

        Raises:
            WorkerError: after all other results, if the worker of a job died in all attempts.
        """
        if self.workers <= 1:
            yield from _map_in_process(job, items)
            return
        pending = deque((item, 1) for item in items)
        running: dict[Future[Any], tuple[Any, int]] = {}
        failed: list[Any] = []
        with _Workers(min(self.workers, len(items))) as workers:
            while pending or running:
                while pending and workers.idle:
                    item, attempt = pending.popleft()
                    running[workers.submit(job, item)] = item, attempt
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    item, attempt = running.pop(future)
                    workers.release(future)
                    if not isinstance(future.exception(), BrokenProcessPool):
                        yield item, future.result()
                    elif attempt < MAX_ATTEMPTS:
                        pending.appendleft((item, attempt + 1))
                    else:
                        failed.append(item)
        if failed:
            raise WorkerError(failed[0], "its worker process was killed or ran out of memory")


class _Workers:
    """Single-threaded worker processes, each in its own pool: a process that dies breaks its pool, but no other jobs.

    The workers exit when the parent's end of a pipe is closed: by `__exit__` after an error or Ctrl-C, or because the parent was
    killed.
    """

    def __init__(self, count: int) -> None:
        self._context = get_context("spawn")
        self._worker_end, self._parent_end = self._context.Pipe(duplex=False)
        self._numbers: dict[ProcessPoolExecutor, int] = {}
        self.idle = [self._make_pool(number) for number in range(count)]
        self._busy: dict[Future[Any], ProcessPoolExecutor] = {}

    def _make_pool(self, number: int) -> ProcessPoolExecutor:
        pool = ProcessPoolExecutor(1, self._context, initializer=_start_worker, initargs=(self._worker_end, number))
        self._numbers[pool] = number
        return pool

    def _replace_pool(self, broken: ProcessPoolExecutor) -> ProcessPoolExecutor:
        return self._make_pool(self._numbers.pop(broken))

    def submit(self, job: Job, item: Any) -> Future[Any]:
        """Start a job on an idle worker."""
        pool = self.idle.pop()
        try:
            future = pool.submit(job, item)
        except BrokenProcessPool:  # the process died after its last job
            pool = self._replace_pool(pool)
            future = pool.submit(job, item)
        self._busy[future] = pool
        return future

    def release(self, future: Future[Any]) -> None:
        """Make the worker of a finished job idle, or replace it if its process died."""
        pool = self._busy.pop(future)
        self.idle.append(self._replace_pool(pool) if isinstance(future.exception(), BrokenProcessPool) else pool)

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._parent_end.close()
        for pool in [*self.idle, *self._busy.values()]:
            pool.shutdown(cancel_futures=True)
        self._parent_end.close()
        self._worker_end.close()


def _start_worker(lifeline: Connection, number: int) -> None:
    """Initialize a worker process: ignore Ctrl-C, which the parent handles, use one thread, and exit if the parent exits."""
    os.environ[WORKER_VARIABLE] = str(number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    Thread(target=_exit_when_closed, args=(lifeline,), daemon=True).start()


def _exit_when_closed(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()  # nothing is sent, so this blocks until the parent's end is closed
    os._exit(1)


def _map_in_process(job: Job, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Run jobs in this process, with one thread as in workers: the last bits of a result depend on the number of threads."""
    threads = torch.get_num_threads()
    for item in items:
        torch.set_num_threads(1)
        try:
            result = job(item)
        finally:
            torch.set_num_threads(threads)
        yield item, result


@dataclass(frozen=True)
class RayExecutor:
    """Executor that runs jobs on the Ray cluster at RAY_ADDRESS, or on a temporary cluster on the cores of this machine.

    Workers import the same code and write to the same paths, so code, data and runs must be on a disk that supports file locks
    and that all machines mount under the same path.
    """

    workers: int

    def map_unordered(self, job: Job, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield (item, job(item)) for every item, as results arrive."""
        ray = _import_ray()
        if not items:
            return
        temporary = not ray.is_initialized()
        if temporary:
            ray.init(**_ray_options(self.workers))
        running: dict[Any, Any] = {}
        failure: WorkerError | None = None
        try:
            remote = ray.remote(num_cpus=1, max_retries=MAX_ATTEMPTS - 1)(_run_on_cluster)
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


EXECUTORS: dict[str, Callable[[int], Executor]] = {"local": LocalExecutor, "ray": RayExecutor}


def make_executor(name: str = "local", workers: int | None = None) -> Executor:
    """Return an executor by name.

    Args:
        name: "local" or "ray".
        workers: number of workers; None for one per core.

    Raises:
        DataError: if the name is unknown.
    """
    if name not in EXECUTORS:
        raise DataError(f"executor must be one of {' '.join(EXECUTORS)}; got {name!r}.")
    return EXECUTORS[name](workers or cpu_count())
