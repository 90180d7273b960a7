"""A task of your own: regression of the frequency of a noisy sine wave by a 1-D convolutional network.

anynorm compare --task examples.frequency:Frequency --norms bn,gn:4,sn --batch-sizes 2,32 --epochs 3 --lr 0.02
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

import anynorm
from anynorm.lab import Options, option


@dataclass(frozen=True)
class FrequencyOptions(Options):
    """The options of the task, which are also flags of `anynorm compare`."""

    noise: float = option(0.3, "standard deviation of the noise.", minimum=0)
    channels: int = option(16, "channels of each convolution.", minimum=1)
    random_sign: bool = option(True, "whether half of the training waves are negated.")


class Frequency(anynorm.Task[FrequencyOptions]):
    """Estimate the number of periods, 1 to 8, of a wave of 64 points from a noisy recording."""

    metric: ClassVar = anynorm.Metric("deviation", "periods")

    def __init__(self, config: anynorm.Config) -> None:
        super().__init__(config)
        waves = make_waves(2000, self.options.noise, seed=0)
        self.train_waves, self.test_waves = waves[:1500], waves[1500:]
        width = self.options.channels
        layers: list[nn.Module] = []
        for inputs in (1, width, width):
            layers += [nn.Conv1d(inputs, width, 5, stride=2, padding=2), nn.BatchNorm1d(width), nn.ReLU()]
        self.model = self.apply_norms(nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * width, 1)))

    @property
    def num_samples(self) -> int:
        """The number of training waves."""
        return len(self.train_waves)

    def batch(self, indices: Tensor, generator: torch.Generator) -> Tensor:
        """Return waves, each with its target as the last value; with `random_sign`, half of them are negated."""
        waves = self.train_waves[indices]
        if not self.options.random_sign:
            return waves
        signs = 1 - 2 * torch.randint(2, (len(waves), 1), generator=generator)
        return torch.cat([signs * waves[:, :-1], waves[:, -1:]], 1)

    def loss(self, batch: Tensor) -> dict[str, Tensor]:
        """Return the mean squared error, and the mean absolute error in periods."""
        error = self.model(batch[:, None, :-1]).flatten() - batch[:, -1]
        return {"loss": error.square().mean(), "deviation": error.detach().abs().mean()}

    def evaluate(self) -> dict[str, float]:
        """Return the metrics on the test waves."""
        return {name: float(value) for name, value in self.loss(self.to_device(self.test_waves)).items()}

    def eval_batches(self, batch_size: int) -> Iterator[Tensor]:
        """Return test waves as the network takes them, for `anynorm diagnose`."""
        for waves in self.to_device(self.test_waves).split(batch_size):
            yield waves[:, None, :-1]


def make_waves(count: int, noise: float, seed: int) -> Tensor:
    """Return (count, 65): 64 points of a noisy sine wave of 1 to 8 periods and random phase, then the number of periods."""
    generator = torch.Generator().manual_seed(seed)
    periods, phase = 1 + 7 * torch.rand(count, 1, generator=generator), 6.2832 * torch.rand(count, 1, generator=generator)
    time = torch.arange(64) / 64
    waves = torch.sin(6.2832 * periods * time + phase) + noise * torch.randn(count, 64, generator=generator)
    return torch.cat([waves, periods], 1)
