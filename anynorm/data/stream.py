"""Datasets that do not fit in memory: images are decoded while the model trains.

    data = load_stream("stream:PATH", image_size=224)
    with StepLoader(data.train, TrainTransform(224), samples, num_workers=2) as loader:
        images, labels = loader.batch(number)         # uint8 (n, 3, 224, 224) and int64 (n,)

`samples(number)` returns the indices of the images of batch `number`, and one seed per image. A batch depends on these alone: it
is the same for any number of workers, and after a restart in the middle of an epoch.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from anynorm.data.folder import FolderSplit, find_splits, report_unreadable, split_indices
from anynorm.data.standardization import Standardized, channel_moments
from anynorm.data.transforms import Pixels, TestTransform
from anynorm.errors import DataError
from anynorm.models.shape import DataShape
from anynorm.progress import track

if TYPE_CHECKING:
    from PIL.Image import Image

Indices = Sequence[int] | npt.NDArray[np.int64] | Tensor
Samples = Callable[[int], tuple[Indices, Indices]]
"""Maps the number of a batch to the indices of its images and one seed per image. It must be defined for a few numbers more than
are used, because batches are prepared ahead; no indices mean that there are no further batches."""
Transform = Callable[["Image", np.random.Generator], Pixels]
Batch = tuple[Tensor, Tensor]
NUM_SAMPLES = 1000
"""Number of training images from which mean and standard deviation are estimated."""
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


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Image files of a folder.

    Attributes:
        root: The folder.
        files: Their paths relative to the folder. An array, because worker processes would copy a list: a process that reads an
            object of Python also writes to it, namely the number of references.
        labels: Their labels (n,).
    """

    root: str
    files: npt.NDArray[np.bytes_]
    labels: npt.NDArray[np.int64]

    @classmethod
    def from_split(cls, split: FolderSplit) -> ImageFiles:
        """Return the files of a split of a folder."""
        files = np.array([os.fsencode(file.relative_to(split.path)) for file in split.files])
        return cls(str(split.path.absolute()), files, np.array(split.labels, np.int64))

    def __len__(self) -> int:
        return len(self.files)

    def open(self, index: int) -> Image:
        """Open an image. Pillow decodes it when its pixels are used."""
        from PIL import Image

        return Image.open(self.name(index))

    def name(self, index: int) -> str:
        """Return the path of an image."""
        return str(Path(self.root) / os.fsdecode(self.files[index]))

    def select(self, indices: Indices) -> ImageFiles:
        """Return a part of the images."""
        chosen = np.asarray(indices)
        return ImageFiles(self.root, self.files[chosen], self.labels[chosen])


@dataclass(frozen=True)
class StreamedDataset(Standardized):
    """Training and test images that are decoded when they are used.

    Attributes:
        train: The training images, to be read by a `StepLoader`.
        test: The test images.
        num_classes: Number of classes; labels are 0 … num_classes − 1.
        mean: Mean of each channel, (3, 1, 1), over a fixed sample of at most 1000 training images.
        std: Standard deviation of each channel, (3, 1, 1), over this sample.
        image_size: Height and width of the test images.
    """

    train: ImageSource
    test: ImageSource
    num_classes: int
    mean: Tensor
    std: Tensor
    image_size: int

    @property
    def shape(self) -> DataShape:
        """Shape of an image, and the number of classes: the argument of `anynorm.models.build_model`."""
        return DataShape(3, self.image_size, self.image_size, self.num_classes)

    def test_batches(self, batch_size: int, num_workers: int = 0) -> Iterator[Batch]:
        """Yield the test split in batches of standardized images and labels, in order."""
        count = len(self.test)

        def samples(number: int) -> tuple[Indices, Indices]:
            indices = range(number * batch_size, min((number + 1) * batch_size, count))
            return indices, [0] * len(indices)

        with StepLoader(self.test, TestTransform(self.image_size), samples, num_workers=num_workers) as loader:
            for number in range(-(-count // batch_size)):
                images, labels = loader.batch(number)
                yield self.standardize(images), labels


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
            DataError: if an image was deleted or cannot be decoded, a worker process was killed, or the batch has no samples.
        """
        try:
            batch = self._read_ahead(number) if self.num_workers else self._decoder.__getitems__(self._pairs(number))
        except BaseException:
            self.close()
            raise
        if isinstance(batch, str):
            self.close()
            raise DataError(batch)
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
            killed = [str(worker.pid) for worker in workers if not worker.is_alive()]
            if not killed:
                raise
            raise DataError(
                f"{len(killed)} of {self.num_workers} worker process(es) that decode images ended unexpectedly "
                f"(pid {' '.join(killed)}). The usual cause is that memory, or shared memory in /dev/shm, ran out: "
                "use fewer workers or smaller batches, and run again to resume."
            ) from None
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
        except DataError as error:
            return str(error)
        labels = self.source.labels[[index for index, _ in pairs]]
        return torch.from_numpy(np.stack(images)), torch.from_numpy(labels)


def decode(source: ImageSource, index: int, transform: Transform, seed: int) -> Pixels:
    """Return the pixels of an image.

    Raises:
        DataError: if the image does not exist any more, or cannot be decoded.
    """
    try:
        with source.open(index) as image:
            return transform(image, np.random.default_rng(seed))
    except FileNotFoundError:
        raise DataError(
            f"{source.name(index)} was deleted while it was in use; a folder must not change during training. "
            "Restore it and run again to resume."
        ) from None
    except Exception as error:  # Pillow raises many types for a file that is not an image, or is too large
        raise DataError(
            f"cannot decode {source.name(index)}: {type(error).__name__}: {error}. Restore it and run again to resume, "
            "or leave unreadable images out from the start (--skip-unreadable, skip_unreadable=True)."
        ) from None


def load_stream(name: str, image_size: int, *, skip_unreadable: bool = False) -> StreamedDataset:
    """Return the images of `stream:PATH`, a folder as in `folder.find_splits`. A folder without a test split is split at random.

    Args:
        name: `stream:PATH`.
        image_size: Height and width of the test images.
        skip_unreadable: Decode every image once, name those that cannot be decoded on stderr, and leave them out.

    Raises:
        DataError: if the folder does not have the required structure, or an image cannot be decoded.
    """
    splits = [ImageFiles.from_split(split) for split in find_splits(name)]
    num_classes = int(max(split.labels.max() for split in splits)) + 1
    return make_streamed(splits, num_classes, image_size, skip_unreadable=skip_unreadable)


def make_streamed(
    splits: Sequence[ImageSource], num_classes: int, image_size: int, *, skip_unreadable: bool = False
) -> StreamedDataset:
    """Return the dataset of one split, which is split at random, or of two (train, then test).

    Raises:
        DataError: if there are no two classes, or an image cannot be decoded.
    """
    if num_classes < 2:
        raise DataError(
            f"a dataset must have at least 2 classes; got {num_classes}. Check the labels: classes are numbered from 0."
        )
    if skip_unreadable:
        splits = [_leave_out_unreadable(split) for split in splits]
    if len(splits) == 1:
        splits = [splits[0].select(indices) for indices in split_indices(len(splits[0]))]
    train, test = splits
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:NUM_SAMPLES].tolist()
    transform = TestTransform(image_size)
    sample = [decode(train, index, transform, 0) for index in track(order, "estimating mean and standard deviation")]
    return StreamedDataset(train, test, num_classes, *channel_moments(torch.from_numpy(np.stack(sample))), image_size)


def _leave_out_unreadable(source: ImageSource) -> ImageSource:
    readable, unreadable = [], []
    transform = TestTransform(1)
    for index in track(range(len(source)), "checking images"):
        try:
            decode(source, index, transform, 0)
            readable.append(index)
        except DataError:
            unreadable.append(source.name(index))
    report_unreadable(unreadable, len(source), source.root, skip_unreadable=True)
    return source.select(readable)


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


def _identity(batch: Any) -> Any:
    return batch


def _no_samples() -> str:
    return "a batch must have at least one sample; got none."
