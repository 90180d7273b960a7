"""You work on another task: write it as a class, and compare norms on it. Here a convolutional network removes noise from digits.

python examples/denoising.py
"""

from __future__ import annotations

import tempfile
from typing import ClassVar

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import anynorm
from anynorm.training.config import Config
from anynorm.training.task import Metrics


class Denoising(anynorm.Task):
    """Recover digits from images with Gaussian noise of standard deviation 0.5."""

    metric: ClassVar = anynorm.Metric("rmse", "grey levels")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        images = torch.tensor(load_digits().images).float()[:, None] / 16
        self.train_images, self.test_images = images[:600], images[600:1000]
        self.test_noise = 0.5 * torch.randn(self.test_images.shape, generator=torch.Generator().manual_seed(0))
        layers: list[nn.Module] = []
        for inputs in (1, 16, 16):
            layers += [nn.Conv2d(inputs, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
        self.model = self.apply_norms(nn.Sequential(*layers, nn.Conv2d(16, 1, 3, padding=1)))  # the norms of the run

    @property
    def num_samples(self) -> int:
        """The number of training images."""
        return len(self.train_images)

    def batch(self, indices: Tensor, generator: torch.Generator) -> Tensor:
        """Return images, and the same images with noise, along a new first axis."""
        images = self.train_images[indices]
        return torch.stack([images, images + 0.5 * torch.randn(images.shape, generator=generator)])

    def loss(self, batch: Tensor) -> Metrics:
        """Return the mean squared error, and its root in grey levels of 0 to 16."""
        mse = nn.functional.mse_loss(self.model(batch[1]), batch[0])
        return {"loss": mse, "rmse": 16 * mse.detach().sqrt()}

    def evaluate(self) -> dict[str, float]:
        """Return the metrics on the test images."""
        batch = self.to_device(torch.stack([self.test_images, self.test_images + self.test_noise]))
        return {name: float(value) for name, value in self.loss(batch).items()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        task = "denoising:Denoising"
        table = anynorm.compare(["bn", "gn:4"], [8], seeds=1, task=task, epochs=1, lr=0.1, processes=1, runs=folder)
    print(table)
