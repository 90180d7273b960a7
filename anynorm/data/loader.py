"""Batches of images that are decoded ahead by worker processes, and read by their number.

`samples(number)` returns the indices of the images of batch `number`, and one seed per image. A batch depends on these alone: it
is the same for any number of workers, and after a restart in the middle of an epoch.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from anynorm.data.transforms import Pixels
from anynorm.errors import DataError, ReadError

if TYPE_CHECKING:
    from PIL.Image import Image

Indices = Sequence[int] | npt.NDArray[np.int64] | Tensor
Samples = Callable[[int], tuple[Indices, Indices]]
"""Maps the number of a batch to the indices of its images and one seed per image. It must be defined for a few numbers more than
are used, because batches are prepared ahead; an empty list ends the batches."""
Transform = Callable[["Image", np.random.Generator], Pixels]
Batch = tuple[Tensor, Tensor]
MAX_EXIT_SECONDS = 2.0
"""Time that a killed worker has to end, after the connection to it was lost."""
PREFETCH_FACTOR = 4
"""Number of batches that each worker prepares ahead."""


class ImageSource(Protocol):
    """Images that are decoded when they are used, with their labels (n,)."""

    @property
    def root(self) -> str:
        """The folder or the dataset, for messages."""

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """The label of each image."""

    def __len__(self) -> int: ...

    def open(self, index: int) -> Image:
        """Open an image. Pillow decodes it when its pixels are used."""

    def name(self, index: int) -> str:
        """Return the name of an image for messages."""

    def select(self, indices: Indices) -> ImageSource:
        """Return a part of the images."""


class StepLoader:
    """Read batches by their number, decoded ahead by worker processes.

    Args:
        source: The images, such as `StreamedDataset.train`.
        transform: What happens to an image, such as `TrainTransform`. It is called with the image and a generator of numpy.
        samples: Returns the indices of the images of a batch, and one seed per image. It is called in this process.
        num_workers: Number of processes that decode. With 0 this process decodes, and nothing is prepared ahead.
        pin_memory: Copy batches to pinned memory, from which they are copied to a GPU without waiting. Ignored without a GPU.

    Workers start at the first batch and end with `close` (or the `with` block). They continue as long as batches are read in
    order, and start again if another number is read.
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
        """Return the images, uint8 (n, 3, h, w), and the labels (n,) of a batch.

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
        """End the worker processes."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator._shutdown_workers()

    def __enter__(self) -> StepLoader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _pairs(self, number: int) -> list[tuple[int, int]]:
        """Return (index, seed) of each image of a batch."""
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
    """Decodes the images of a batch; an error is returned as its message, because DataLoader would put its traceback in front."""

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
    """Return the pixels of an image.

    Raises:
        ReadError: if the image does not exist any more, or cannot be decoded.
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
    """Return how workers are started: by a server process without the memory, the threads and the GPU of this one.

    The server has imported this module once, so that a worker starts in some milliseconds and shares its memory.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _end_with_parent(_: int) -> None:
    """End this worker when the process that reads its batches ends, even if that is killed.

    DataLoader's own check compares the parent of the worker, which here is the server; and the server waits for its workers.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True).start()


def _exit_after(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def _describe_end(ended: list[Any], num_workers: int) -> str:
    """Return the message about workers that ended: by a signal (a negative exit code), or by an error of their own."""
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
