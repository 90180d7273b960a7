"""The samples and random numbers of each training step, as functions of the seed and the step number only."""

from __future__ import annotations

import torch
from torch import Tensor

from anynorm.errors import DataError
from anynorm.lab.training.config import Config

_ORDER, _AUGMENTATION, _DROPOUT = 1, 2, 3
"""Numbers of the independent random streams; see `derive_seed`."""


class Sampler:
    """A sampler that permutes the samples in every epoch and divides them into steps, micro-batches of a step, and processes.

    Args:
        config: the run.
        num_samples: number of training samples.
        micro_batches_per_step: number of batches per step and process.
        rank: rank of this process.

    Raises:
        DataError: if a step needs more samples than `num_samples`.
    """

    def __init__(self, config: Config, num_samples: int, micro_batches_per_step: int, rank: int = 0) -> None:
        self.config, self.num_samples, self.micro_batches_per_step, self.rank = config, num_samples, micro_batches_per_step, rank
        self.samples_per_step = config.batch_size * micro_batches_per_step * config.devices
        if self.samples_per_step > num_samples:
            raise DataError(
                f"a step needs {self.samples_per_step} samples (batch size {config.batch_size} × {micro_batches_per_step} "
                f"batches per step × devices={config.devices}); got {num_samples} training samples. Use a smaller batch size."
            )
        self.steps_per_epoch = num_samples // self.samples_per_step
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def indices(self, step: int, micro_batch: int = 0) -> Tensor:
        """Return the indices of the samples of one micro-batch in this process, shape (batch_size,).

        Args:
            step: number of the step.
            micro_batch: index of the micro-batch within the step, below `micro_batches_per_step`.
        """
        epoch, index = divmod(step, self.steps_per_epoch)
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(derive_seed(self.config.seed, _ORDER, epoch))
            self._order = epoch, torch.randperm(self.num_samples, generator=generator)
        start = index * self.samples_per_step + self._index_in_step(micro_batch) * self.config.batch_size
        return self._order[1][start : start + self.config.batch_size]

    def seed(self, step: int, micro_batch: int = 0) -> int:
        """Return the seed of the augmentation of one micro-batch in this process."""
        before = step * self.micro_batches_per_step * self.config.devices
        return derive_seed(self.config.seed, _AUGMENTATION, before + self._index_in_step(micro_batch))

    def generator(self, step: int, micro_batch: int = 0) -> torch.Generator:
        """Return a CPU generator for the augmentation of one micro-batch in this process."""
        return torch.Generator().manual_seed(self.seed(step, micro_batch))

    def dropout_seed(self, step: int) -> int:
        """Return the seed of torch's global generators for a step of this process, such as for dropout."""
        return derive_seed(self.config.seed, _DROPOUT, step * self.config.devices + self.rank)

    def _index_in_step(self, micro_batch: int) -> int:
        """Return the index of a micro-batch of this process among the micro-batches of all processes in a step."""
        return micro_batch * self.config.devices + self.rank


def derive_seed(seed: int, stream: int, index: int) -> int:
    """Derive a seed from the seed of a run, the number of a random stream and a counter."""
    return (seed * 1_000_003 + stream) * 2_147_483_647 % (1 << 40) + index
