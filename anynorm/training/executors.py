"""Where many jobs that need nothing of each other are done: in processes of this machine, or on a Ray cluster.

A job is a function of one plain value, and gives a plain value. Each is done in a process of one thread, and answers come as they
are found. A worker that is lost (killed, out of memory, its machine gone) step_times its job alone, which is tried up to `TRIES` times
in all; what a job has written to a store by then it goes on from. A job that is given up is told when the others are done.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Protocol

import torch

from anynorm.errors import DataError
from anynorm.training.provenance import cpu_count

TRIES = 3
Job = Callable[[Any], Any]


class Executor(Protocol):
    """Does jobs."""

    @property
    def workers(self) -> int:
        """How many jobs are done at once."""

    def map_unordered(self, job: Job, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Do a job with each of some items; give (item, answer) as they come."""


@dataclass(frozen=True)
class LocalExecutor:
    """Does jobs in processes of this machine; a single worker is this process itself."""

    workers: int

    def map_unordered(self, job: Job, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Do a job with each of some items; give (item, answer) as they come."""
        if self.workers <= 1:
            yield from _here(job, items)
            return
        crew = [Worker() for _ in range(min(self.workers, len(items)))]
        free: SimpleQueue[Worker] = SimpleQueue()
        for worker in crew:
            free.put(worker)

        def done(item: Any) -> Any:
            worker = free.get()
            try:
                return worker.map_unordered(job, item)
            finally:
                free.put(worker)

        with ThreadPoolExecutor(max(len(crew), 1)) as threads:
            waiting = {threads.submit(done, item): item for item in items}
            try:
                yield from _answers((waiting[future], future.result) for future in as_completed(waiting))
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                for worker in crew:
                    worker.stop()
                raise
        for worker in crew:
            worker.pool.shutdown()


class LostError(DataError):
    """Tells of a job that was given up."""


def _answers(found: Iterable[tuple[Any, Callable[[], Any]]]) -> Iterator[tuple[Any, Any]]:
    """Give items with their answers; that one was given up is said at the end."""
    lost: LostError | None = None
    for item, answer in found:
        try:
            given = answer()
        except LostError as error:
            lost = lost or error
        else:
            yield item, given
    if lost is not None:
        raise lost


class Worker:
    """One process; a new one takes its place when it is lost."""

    def __init__(self) -> None:
        self.pool = self._new()
        self.stopped = False
        self.swap_buffers = Lock()

    def _new(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, get_context("spawn"), initializer=_begin)

    def map_unordered(self, job: Job, item: Any) -> Any:
        """Do a job, again where the process is lost over it."""
        for _ in range(TRIES):
            try:
                with self.swap_buffers:
                    if self.stopped:
                        raise CancelledError
                    future = self.pool.submit(job, item)
                return future.result()
            except BrokenProcessPool:
                with self.swap_buffers:
                    self.pool = self._new()
        raise LostError(
            f"{item} was given up: the process that worked on it was killed from outside, or had no memory, {TRIES} times. The "
            "same command goes on with what is left; fewer --processes need less memory."
        )

    def stop(self) -> None:
        """Let the process go, whatever it is at."""
        with self.swap_buffers:
            self.stopped = True
            for process in list((self.pool._processes or {}).values()):
                process.terminate()


def _here(job: Job, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Do jobs in this process, with one thread, as others do: the last bits depend on it, and so may all the rest."""
    threads = torch.get_num_threads()
    for item in items:
        torch.set_num_threads(1)
        try:
            answer = job(item)
        finally:
            torch.set_num_threads(threads)
        yield item, answer


def _begin() -> None:
    """Leave Ctrl-C to the process that waits for the answers, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """End when the process that waits for the answers is gone: killed, it cannot say so."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


@dataclass(frozen=True)
class RayExecutor:
    """Does jobs on a Ray cluster: the one that RAY_ADDRESS names, or one of this machine's cores that lasts as long as we do.

    Workers import what we import and write where we write, so code, data and the folder of the runs are to be on a disk they all
    have under the same path, and that can lock files.
    """

    workers: int

    def map_unordered(self, job: Job, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Do a job with each of some items; give (item, answer) as they come."""
        ray = _ray()
        if not items:
            return
        own = not ray.is_initialized()
        if own:
            ray.init(**_started(self.workers))
        waiting: dict[Any, Any] = {}
        try:
            remote = ray.remote(num_cpus=1, max_retries=TRIES - 1)(_one_thread)
            waiting = {remote.remote(str(Path.cwd()), _settings(), job, item): item for item in items}
            yield from _answers(_ended(ray, waiting))
        finally:
            for task in waiting:
                ray.cancel(task, force=True)
            if own:
                ray.shutdown()


def _ended(ray: Any, waiting: dict[Any, Any]) -> Iterator[tuple[Any, Callable[[], Any]]]:
    while waiting:
        (done,), _ = ray.wait(list(waiting), num_returns=1)
        item = waiting.pop(done)
        yield item, partial(_answer, ray, done, item)


def _answer(ray: Any, done: Any, item: Any) -> Any:
    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise LostError(f"{item} was given up after {TRIES} tries: {str(error).splitlines()[0]}") from None


def _one_thread(folder: str, settings: dict[str, str], job: Job, item: Any) -> Any:
    """Do a job where it was asked for, and as it was: a worker has a folder and an environment of its own."""
    try:
        os.chdir(folder)
    except OSError:
        raise DataError(
            f"There is no {folder} on {platform.node()}: give the cluster a disk that all its machines have."
        ) from None
    os.environ.update(settings)
    torch.set_num_threads(1)
    return job(item)


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("ANYNORM_")}


def _started(workers: int) -> dict[str, Any]:
    """Say how to reach a cluster, or to start one."""
    paths = os.pathsep.join(path for path in sys.path if path)
    told: dict[str, Any] = {"log_to_driver": False, "runtime_env": {"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}}}
    if os.environ.get("RAY_ADDRESS"):
        return told
    return told | {"num_cpus": workers, "include_dashboard": False}


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise DataError("--executor ray needs Ray: pip install 'anynorm[cluster]'.") from None
    return ray


EXECUTORS: dict[str, Callable[[int], Executor]] = {"local": LocalExecutor, "ray": RayExecutor}


def make_executor(name: str = "local", workers: int | None = None) -> Executor:
    """Make an executor by its name; without a number it has as many workers as there are cores."""
    if name not in EXECUTORS:
        raise DataError(f"There is no executor {name!r}. Known: {' '.join(EXECUTORS)}.")
    return EXECUTORS[name](workers or cpu_count())
