"""Compare the speed of training ResNet-18 at 64 pixels from images in memory and from a streamed folder.

    python benchmarks/stream.py [--minutes 6] [--images 20000] [--batch-size 32] [--json out.json]

The images are JPEGs of 64 to 100 pixels (smooth colors with noise), generated in a temporary folder. Images in memory are cropped
and flipped in batches by the training process; streamed images are decoded, cropped, resized and flipped by worker processes. The
candidates are timed alternately. A turn of a candidate is a few training steps; batches that its workers prepared during turns of
other candidates are dropped first. The target is 90 % of the images per second from memory with the same number of threads, and
at most 600 MB per worker.

On a shared machine, seconds depend on other processes; CPU seconds of the training process and its workers depend on them much
less.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from measurement import write_results
from PIL import Image
from targets import stream_targets
from torch import Tensor, nn

from anynorm.lab.data import StepLoader, augment, load_dataset
from anynorm.lab.data.image_sources import Indices
from anynorm.lab.data.loader import PREFETCH_FACTOR, Samples
from anynorm.lab.data.stream import StreamedDataset, load_stream
from anynorm.lab.data.transforms import TrainTransform
from anynorm.lab.models import build_model
from anynorm.progress import track

IMAGE_SIZE = 64
NUM_CLASSES = 10
STEPS_PER_TURN = 2
Batches = Callable[[], Iterator[tuple[Tensor, Tensor]]]
"""A function that returns the batches of a turn: standardized images and labels."""


class Candidate(NamedTuple):
    """A way to train: number of threads of the training process, and of worker processes (None: images in memory)."""

    threads: int
    workers: int | None

    def __str__(self) -> str:
        source = "memory" if self.workers is None else f"stream, {self.workers} worker{'s' if self.workers > 1 else ''}"
        return f"{source}, {self.threads} thread{'s' if self.threads > 1 else ''}"


CANDIDATES = [Candidate(1, None), Candidate(1, 1), Candidate(1, 2), Candidate(2, None), Candidate(2, 1)]


def write_images(root: Path, count: int) -> None:
    """Write JPEGs of smooth colors with noise, which take about as long to decode as photographs."""
    generator = np.random.default_rng(0)
    for label in range(NUM_CLASSES):
        for split in ("train", "test"):
            (root / split / str(label)).mkdir(parents=True)
    for index in track(range(count + 10 * NUM_CLASSES), "writing images"):
        width, height = (int(side) for side in generator.integers(64, 101, 2))
        coarse = Image.fromarray(generator.integers(0, 256, (6, 6, 3), np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float32)
        pixels = smooth + generator.normal(0, 8, (height, width, 1))
        split = "train" if index < count else "test"
        path = root / split / str(index % NUM_CLASSES) / f"{index}.jpg"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def memory_batches(name: str, batch_size: int) -> Batches:
    """Return a function that returns batches of images in memory, cropped and flipped."""
    data = load_dataset(name, IMAGE_SIZE)
    images, labels = data.train
    generator = torch.Generator().manual_seed(0)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            chosen = torch.randint(len(images), (batch_size,), generator=generator)
            x = augment.random_crop(data.standardize(images[chosen]), 4, generator)
            yield augment.random_flip(x, generator), labels[chosen]

    return batches


def streamed_batches(data: Any, loader: StepLoader) -> Batches:
    """Return a function that returns batches of a loader; it first drops batches that were prepared before its turn."""
    number = 0

    def read() -> tuple[Tensor, Tensor]:
        nonlocal number
        number += 1
        return loader.batch(number - 1)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(PREFETCH_FACTOR * loader.num_workers):
            read()
        return ((data.standardize(images), labels) for images, labels in iter(read, None))

    return batches


def time_turn(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[tuple[Tensor, Tensor]]
) -> tuple[float, float]:
    """Run the steps of a turn; return the seconds and the CPU seconds of this process per step."""
    start, cpu_start = time.perf_counter(), time.process_time()
    for x, labels in itertools.islice(batches, STEPS_PER_TURN):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return (time.perf_counter() - start) / STEPS_PER_TURN, (time.process_time() - cpu_start) / STEPS_PER_TURN


def peak_megabytes(pid: int) -> float:
    """Return the peak resident memory of a process in MB (Linux), including shared memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1000


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def time_decoding(data: StreamedDataset, samples: Samples) -> float:
    """Return the CPU seconds per batch of one worker that decodes images."""
    with StepLoader(data.train, TrainTransform(IMAGE_SIZE), samples, num_workers=1) as loader:
        loader.batch(0)
        (pid,) = loader.worker_pids
        start = cpu_seconds(pid)
        for index in range(1, 101):
            loader.batch(index)
        return (cpu_seconds(pid) - start) / 100


def measure(root: Path, batch_size: int, minutes: float) -> dict[str, Any]:
    """Time the candidates alternately; return their times, the memory of their workers, and the CPU seconds of decoding."""
    data = load_stream(f"stream:{root}", IMAGE_SIZE)
    memory = memory_batches(f"folder:{root}", batch_size)
    torch.manual_seed(0)
    model = build_model("resnet18", data.shape)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def samples(number: int) -> tuple[Indices, Indices]:
        generator = np.random.default_rng(number)
        return generator.integers(len(data.train), size=batch_size), generator.integers(2**60, size=batch_size)

    times: dict[Candidate, list[tuple[float, float]]] = {candidate: [] for candidate in CANDIDATES}
    peaks: dict[Candidate, list[float]] = {}
    with ExitStack() as stack:
        sources, loaders = {}, {}
        for workers in (1, 2):
            loaders[workers] = stack.enter_context(
                StepLoader(data.train, TrainTransform(IMAGE_SIZE), samples, num_workers=workers)
            )
            sources[workers] = streamed_batches(data, loaders[workers])
        end = time.perf_counter() + 60 * minutes
        while time.perf_counter() < end or len(times[CANDIDATES[0]]) < 2:
            for candidate in random.sample(CANDIDATES, len(CANDIDATES)):
                torch.set_num_threads(candidate.threads)
                batches = memory() if candidate.workers is None else sources[candidate.workers]()
                times[candidate].append(time_turn(model, optimizer, batches))
                if candidate.workers:
                    peaks[candidate] = [peak_megabytes(pid) for pid in loaders[candidate.workers].worker_pids]
    rows = [make_row(candidate, times, peaks.get(candidate, []), batch_size) for candidate in CANDIDATES]
    return {"rows": rows, "decoding_cpu_seconds_per_step": time_decoding(data, samples)}


def make_row(
    candidate: Candidate, times: dict[Candidate, list[tuple[float, float]]], peaks: list[float], batch_size: int
) -> dict[str, Any]:
    """Return the results of a candidate, with its speed relative to memory in the best turns and in the median round."""
    seconds, cpu = map(list, zip(*times[candidate], strict=True))
    in_memory, cpu_in_memory = map(list, zip(*times[candidate._replace(workers=None)], strict=True))
    return candidate._asdict() | {
        "name": str(candidate),
        "images_per_second": batch_size / min(seconds),
        "ratio": min(in_memory) / min(seconds),
        "median_ratio": statistics.median(base / own for base, own in zip(in_memory, seconds, strict=True)),
        "cpu_ratio": min(cpu_in_memory) / min(cpu),
        "worker_megabytes": peaks,
        "seconds_per_step": seconds,
        "cpu_seconds_per_step": cpu,
    }


def main() -> None:
    """Measure, and print a table and the targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=6.0, help="time for training (default: 6)")
    parser.add_argument("--images", type=int, default=20_000, help="number of training images (default: 20000)")
    parser.add_argument("--batch-size", type=int, default=32, help="images per step (default: 32)")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), arguments.images)
        results = measure(Path(folder), arguments.batch_size, arguments.minutes)
    rows = results["rows"]
    print(f"{'':28} images/s (best)   of memory, best    median   CPU of memory / CPU   peak MB per worker")
    for row in rows:
        megabytes = " ".join(f"{peak:.0f}" for peak in row["worker_megabytes"])
        ratios = f"{row['ratio']:17.3f} {row['median_ratio']:9.3f} {row['cpu_ratio']:21.3f}"
        print(f"{row['name']:28} {row['images_per_second']:15.1f} {ratios}   {megabytes}")
    decoding, step = results["decoding_cpu_seconds_per_step"], min(rows[0]["cpu_seconds_per_step"])
    print(f"Workers need {decoding:.4f} CPU seconds per step, {100 * decoding / step:.1f} % of those of the step ({step:.2f}).")
    for target in stream_targets(results):
        print(target)
    write_results(arguments.json, {"images": arguments.images, "batch_size": arguments.batch_size, **results})


if __name__ == "__main__":
    main()
