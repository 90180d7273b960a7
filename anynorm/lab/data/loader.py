"""Image batches that are prefetched by worker processes and indexed by batch number.

`samples(number)` returns the image indices of batch `number`, and one seed per image. A batch depends on nothing else: it is the
same for any number of workers, and after a restart in the middle of an epoch.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from anynorm.errors import DataError, ReadError
from anynorm.lab.data.image_sources import ImageSource, Indices
from anynorm.lab.data.transforms import Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

Samples = Callable[[int], tuple[Indices, Indices]]
"""Maps a batch number to image indices and one seed per image. Because of prefetching, it is also called for a few numbers after
the last batch that is read; an empty list ends the batches."""
Transform = Callable[["Image", np.random.Generator], Pixels]
Batch = tuple[Tensor, Tensor]
MAX_EXIT_SECONDS = 2.0
"""How long to wait for a killed worker to exit after the connection to it was lost."""
PREFETCH_FACTOR = 4
"""Number of batches that each worker prefetches."""


class StepLoader:
    """Loader of image batches by batch number, with prefetching by worker processes.

    Args:
        source: The images, such as `StreamedDataset.train`.
        transform: Called with a PIL image and a numpy generator; returns the pixels. For example `TrainTransform`.
        samples: Called with a batch number, in this process; returns the image indices of the batch and one seed per image.
        num_workers: Number of worker processes; 0 decodes in this process, without prefetching.
        pin_memory: Copy batches to pinned memory, for asynchronous copies to a GPU. Ignored without a GPU.

    Workers start at the first batch and stop at `close` (or at the end of the `with` block). They restart if batches are not read
    in order.
    """

    def __init__(
        self, source: ImageSource, transform: Transform, samples: Samples, *, num_workers: int = 0, pin_memory: bool = False
    ) -> None:
        if num_workers < 0:
            raise DataError(f"num_workers must be at least 0; got {num_workers}.")
        self.num_workers = num_workers
        self.pin_memory = pin_memory and torch.cuda.is_available()
        self._decoder = _Decoder(source, transform)
        self._samples = samples
        self._iterator: Any = None
        self._next_number = 0

    def batch(self, number: int) -> Batch:
        """Return batch `number`: images, uint8 (n, 3, h, w), and labels (n,).

        Raises:
            ReadError: if an image was deleted or cannot be decoded, a worker process was killed, or the batch has no samples.
        """
        try:
            batch = self._read_ahead(number) if self.num_workers else self._decoder.__getitems__(self._pairs(number))
        except BaseException:
            self.close()
            raise
        if isinstance(batch, str):
            self.close()
            raise ReadError(batch)
        return batch

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the running workers."""
        return [] if self._iterator is None else [worker.pid for worker in self._iterator._workers]

    def close(self) -> None:
        """Stop the worker processes."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator._shutdown_workers()

    def __enter__(self) -> StepLoader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _pairs(self, number: int) -> list[tuple[int, int]]:
        """Return the pairs (index, seed) of batch `number`, one per image."""
        indices, seeds = (np.asarray(values).tolist() for values in self._samples(number))
        return list(zip(indices, seeds, strict=True))

    def _read_ahead(self, number: int) -> Batch | str:
        if self._iterator is None or number != self._next_number:
            self.close()
            self._iterator = self._start_workers(number)
        workers = self._iterator._workers
        try:
            batch: Batch | str = next(self._iterator)
        except StopIteration:
            return _no_samples()
        except (RuntimeError, OSError, EOFError):
            connection.wait([worker.sentinel for worker in workers], MAX_EXIT_SECONDS)  # a connection may end before its process
            ended = [worker for worker in workers if not worker.is_alive()]
            if not ended:
                raise
            raise ReadError(_describe_end(ended, self.num_workers)) from None
        self._next_number = number + 1
        return batch

    def _start_workers(self, start: int) -> Any:
        batches = itertools.takewhile(bool, map(self._pairs, itertools.count(start)))
        loader: DataLoader[Any] = DataLoader(
            self._decoder,  # type: ignore[arg-type]
            batch_sampler=batches,
            collate_fn=_identity,
            num_workers=self.num_workers,
            prefetch_factor=PREFETCH_FACTOR,
            pin_memory=self.pin_memory,
            multiprocessing_context=_worker_context(),
            worker_init_fn=_end_with_parent,
            generator=torch.Generator(),  # by default, DataLoader would draw from torch's global generator
        )
        return iter(loader)


@dataclass(frozen=True)
class _Decoder:
    """Decoder of batches. It returns an error as its message, because DataLoader would prepend the traceback."""

    source: ImageSource
    transform: Transform

    def __len__(self) -> int:
        return len(self.source)

    def __getitems__(self, pairs: list[tuple[int, int]]) -> Batch | str:
        if not pairs:
            return _no_samples()
        try:
            images = [decode(self.source, index, self.transform, seed) for index, seed in pairs]
        except ReadError as error:
            return str(error)
        labels = self.source.labels[[index for index, _ in pairs]]
        return torch.from_numpy(np.stack(images)), torch.from_numpy(labels)


def decode(source: ImageSource, index: int, transform: Transform, seed: int) -> Pixels:
    """Decode and transform an image.

    Raises:
        ReadError: if the image no longer exists, or cannot be decoded.
    """
    try:
        with source.open(index) as image:
            return transform(image, np.random.default_rng(seed))
    except FileNotFoundError:
        raise ReadError(
            f"{source.name(index)} was deleted while it was in use; a folder must not change during training. "
            "Restore it and run again to resume."
        ) from None
    except Exception as error:  # Pillow raises many types for a file that is not an image, or is too large
        raise ReadError(
            f"cannot decode {source.name(index)}: {type(error).__name__}: {error}. Restore it and run again to resume, "
            "or leave unreadable images out from the start (--skip-unreadable, skip_unreadable=True)."
        ) from None


def _worker_context() -> multiprocessing.context.BaseContext:
    """Return the start method of workers: a fork server, without the memory, the threads and the GPU of this process.

    The server imports this module once; a worker then starts within milliseconds and shares the server's memory.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _end_with_parent(_: int) -> None:
    """Exit this worker when the process that reads its batches exits, even if it is killed.

    DataLoader's own check does not detect that: it watches the worker's parent, here the server, which waits for its workers.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True).start()


def _exit_after(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def _describe_end(ended: list[Any], num_workers: int) -> str:
    """Return the error message for workers that exited: by a signal (negative exit code), or by an exception."""
    if any(worker.exitcode < 0 for worker in ended):
        cause = (
            "The usual cause is that memory, or shared memory in /dev/shm, ran out: use fewer workers or smaller batches, "
            "and run again to resume."
        )
    else:
        cause = "Its error is printed above. A script must use workers inside `if __name__ == '__main__':` (or num_workers=0)."
    pids = " ".join(str(worker.pid) for worker in ended)
    return f"{len(ended)} of {num_workers} worker process(es) that decode images ended unexpectedly (pid {pids}). {cause}"


def _identity(batch: Any) -> Any:
    return batch


def _no_samples() -> str:
    return "a batch must have at least one sample; got none."
