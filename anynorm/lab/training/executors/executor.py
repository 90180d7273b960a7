"""The interface of executors.

A job is a picklable function of one picklable argument. Each call runs in a single-threaded process, and results are yielded as
they arrive. If a worker dies (killed, out of memory, machine lost), its job is started again, up to `MAX_ATTEMPTS` attempts in
total; a job that trains a run resumes from the checkpoint of the run. A job whose worker died in all attempts is reported after
all other jobs have finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from anynorm.errors import DataError

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
