"""Where many jobs that need nothing of each other are done: in processes of this machine, or on a Ray cluster.

A job is a function of one plain value, and gives a plain value. Each is done in a process of one thread, and answers come as they
are found. A worker that is lost (killed, out of memory, its machine gone) costs its job alone, which is done again, up to `TRIES`
times; what a job has written to a store by then it goes on from.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

import torch

from anynorm.errors import DataError

TRIES = 3
Job = Callable[[Any], Any]


class Executor(Protocol):
    """Does jobs."""

    @property
    def workers(self) -> int:
        """How many jobs are done at once."""

    def do(self, job: Job, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Do a job with each of some items; give (item, answer) as they come."""


def cores() -> int:
    """Count the cores there are for us."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Local:
    """Does jobs in processes of this machine; a single worker is this process itself."""

    workers: int

    def do(self, job: Job, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
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
                return worker.do(job, item)
            finally:
                free.put(worker)

        with ThreadPoolExecutor(max(len(crew), 1)) as threads:
            waiting = {threads.submit(done, item): item for item in items}
            try:
                for future in as_completed(waiting):
                    yield waiting[future], future.result()
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                for worker in crew:
                    worker.stop()
                raise
        for worker in crew:
            worker.pool.shutdown()


class Worker:
    """One process; a new one takes its place when it is lost."""

    def __init__(self) -> None:
        self.pool = self._new()
        self.stopped = False

    def _new(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, get_context("spawn"), initializer=_begin)

    def do(self, job: Job, item: Any) -> Any:
        """Do a job, again where the process is lost over it."""
        for _ in range(TRIES):
            try:
                return self.pool.submit(job, item).result()
            except BrokenProcessPool:
                if self.stopped:
                    raise
                self.pool = self._new()
        raise DataError(
            f"{item} was given up: the process that worked on it was killed from outside, or had no memory, {TRIES} times. The "
            "same command goes on with what is left; fewer --processes need less memory."
        )

    def stop(self) -> None:
        """Let the process go, whatever it is at."""
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
class Cluster:
    """Does jobs on a Ray cluster: the one that RAY_ADDRESS names, or one of this machine's cores that lasts as long as we do.

    Workers import what we import and write where we write, so code and the folder of the runs are to be on a disk they all have.
    """

    workers: int

    def do(self, job: Job, items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Do a job with each of some items; give (item, answer) as they come."""
        ray = _ray()
        own = not ray.is_initialized()
        if own:
            ray.init(**_started(self.workers))
        try:
            remote = ray.remote(num_cpus=1, max_retries=TRIES)(_one_thread)
            waiting = {remote.remote(job, item): item for item in items}
            while waiting:
                (done,), _ = ray.wait(list(waiting), num_returns=1)
                yield waiting.pop(done), _answer(ray, done)
        finally:
            if own:
                ray.shutdown()


def _one_thread(job: Job, item: Any) -> Any:
    torch.set_num_threads(1)
    return job(item)


def _answer(ray: Any, done: Any) -> Any:
    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise DataError(f"A worker of the cluster was lost {TRIES + 1} times: {str(error).splitlines()[0]}") from None


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


EXECUTORS: dict[str, Callable[[int], Executor]] = {"local": Local, "ray": Cluster}


def executor(name: str = "local", workers: int | None = None) -> Executor:
    """Make an executor by its name; without a number it has as many workers as there are cores."""
    if name not in EXECUTORS:
        raise DataError(f"There is no executor {name!r}. Known: {' '.join(EXECUTORS)}.")
    return EXECUTORS[name](workers or cores())
