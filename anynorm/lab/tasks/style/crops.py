"""Square crops of images without labels, as batches of a run.

Training crops are random and depend only on the seed and the index of the micro-batch; test crops are central. Images and
networks use the channels-last memory format, with which a step takes 0.85 of the time on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from anynorm.errors import DataError
from anynorm.lab.data.loader import StepLoader
from anynorm.lab.data.transforms import CenterCrop, RandomCrop
from anynorm.lab.data.unlabeled import load_unlabeled
from anynorm.lab.training.config import Config
from anynorm.lab.training.images import choose_samples, count_tests
from anynorm.lab.training.sampler import Sampler

MIN_IMAGES_FOR_WORKERS = 2000
"""Fewer images are decoded by the process that trains: it takes 2 ms per image, and worker processes take seconds to start."""
Network = TypeVar("Network", bound=nn.Module)
Choose = Callable[[Sampler, int, int], Tensor]


class Crops:
    """Crops of the images of a source.

    Args:
        name: the images, see `anynorm.lab.data.unlabeled`.
        config: the run; `image_size` is the side of a crop.
        resize: the shorter side of an image before it is cropped.
        stream: random stream, different for each source of a run.
        choose: function that returns the image indices of a micro-batch; None to use the sampler.

    Raises:
        DataError: if the source does not exist or has too few images, or `resize` is less than `image_size`.
    """

    def __init__(self, name: str, config: Config, resize: int, *, stream: int = 0, choose: Choose | None = None) -> None:
        if resize < config.image_size:
            raise DataError(f"resize must be at least image_size={config.image_size}; got {resize}.")
        train, test = load_unlabeled(name, skip_unreadable=config.skip_unreadable)
        chosen = choose_samples(config, len(train)) if choose is None else None
        self.train = train if chosen is None else train.select(chosen)
        self.test = test if choose else test.select(range(count_tests(config, len(test))))
        self.config, self.resize, self.stream = config, resize, stream
        self.choose = choose or (lambda sampler, step, micro_batch: sampler.indices(step, micro_batch))
        self._loader: StepLoader | None = None

    def batch(self, sampler: Sampler, step: int, micro_batch: int, *, num_workers: int = 0) -> Tensor:
        """Return the random crops of a micro-batch, (n, 3, image_size, image_size) in [0, 1]; the first call starts workers."""
        if self._loader is None:
            self._loader = self._make_loader(sampler, num_workers)
        return to_float(self._loader.batch(step * sampler.micro_batches_per_step + micro_batch)[0])

    def _make_loader(self, sampler: Sampler, num_workers: int) -> StepLoader:
        def samples(batch: int) -> tuple[Tensor, list[int]]:
            step, micro_batch = divmod(batch, sampler.micro_batches_per_step)
            indices = self.choose(sampler, step, micro_batch)
            first = (self.stream << 60) + sampler.seed(step, micro_batch) * self.config.batch_size
            return indices, list(range(first, first + len(indices)))

        num_workers = num_workers if len(self.train) >= MIN_IMAGES_FOR_WORKERS else 0
        transform = RandomCrop(self.resize, self.config.image_size)
        return StepLoader(self.train, transform, samples, num_workers=num_workers, pin_memory=True)

    def test_crops(self, indices: range) -> Tensor:
        """Return central crops of test images, (n, 3, image_size, image_size) in [0, 1]; indices wrap around."""
        wrapped = [index % len(self.test) for index in indices]
        transform = CenterCrop(self.resize, self.config.image_size)
        return to_float(StepLoader(self.test, transform, lambda _: (wrapped, [0] * len(wrapped))).batch(0)[0])

    def test_batches(self, batch_size: int) -> Iterator[Tensor]:
        """Yield the central crops of all test images, in order."""
        for start in range(0, len(self.test), batch_size):
            yield self.test_crops(range(start, min(start + batch_size, len(self.test))))

    def close(self) -> None:
        """Stop the worker processes."""
        if self._loader is not None:
            self._loader.close()


def to_float(pixels: Tensor) -> Tensor:
    """Return uint8 pixels (n, 3, h, w) as values in [0, 1]."""
    return (pixels.float() / 255).contiguous(memory_format=torch.channels_last)


def channels_last(network: Network) -> Network:
    """Return a network in the channels-last memory format."""
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def to_uint8(images: Tensor) -> Tensor:
    """Return values in [0, 1] as uint8 pixels; values outside are clipped."""
    return (255 * images.float().clamp(0, 1)).round().to(torch.uint8).cpu()
