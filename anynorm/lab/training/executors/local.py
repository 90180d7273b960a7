"""Worker processes of this machine.

Every worker is a pool of one process. In a pool of several (`concurrent.futures`, loky), a process that is killed fails all
running jobs of the pool, and which job killed it is unknown; and workers finish their jobs after their parent was killed.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

import torch

from anynorm.lab.training.devices import WORKER_VARIABLE
from anynorm.lab.training.executors.executor import MAX_ATTEMPTS, Job, WorkerError

DEATH = (
    "its worker process was killed or ran out of memory, or it could not start: then its error is printed above, and a script "
    "must start workers inside `if __name__ == '__main__':`"
)


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
            raise WorkerError(failed[0], DEATH)


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
