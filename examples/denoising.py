"""You work on another task: write it as a class, and compare norms on it. Here a convolutional network removes noise from digits.

python examples/denoising.py
"""

from __future__ import annotations

import tempfile

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import anynorm


class Denoising(anynorm.Task):
    """Recover digits from images with Gaussian noise of standard deviation 0.5."""

    metric = anynorm.Metric("rmse", "grey levels")

    def __init__(self, config: anynorm.Config) -> None:
        super().__init__(config)
        images = torch.tensor(load_digits().images).float()[:, None] / 16
        noise = 0.5 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
        self.train_images, self.test_pairs = images[:600], torch.stack([images, images + noise])[:, 600:1000]
        first, second, last = (nn.Conv2d(i, o, 3, padding=1) for i, o in ((1, 16), (16, 16), (16, 1)))
        layers = first, nn.BatchNorm2d(16), nn.ReLU(), second, nn.BatchNorm2d(16), nn.ReLU(), last
        self.model = self.apply_norms(nn.Sequential(*layers))  # replaces BatchNorm by the norm of the run

    @property
    def num_samples(self) -> int:
        """The number of training images."""
        return len(self.train_images)

    def batch(self, indices: Tensor, generator: torch.Generator) -> Tensor:
        """Return images, and the same images with noise, along a new first axis."""
        noise = 0.5 * torch.randn(len(indices), 1, 8, 8, generator=generator)
        return torch.stack([self.train_images[indices], self.train_images[indices] + noise])

    def loss(self, batch: Tensor) -> dict[str, Tensor]:
        """Return the mean squared error, and its root in grey levels of 0 to 16."""
        mse = nn.functional.mse_loss(self.model(batch[1]), batch[0])
        return {"loss": mse, "rmse": 16 * mse.detach().sqrt()}

    def evaluate(self) -> dict[str, float]:
        """Return the metrics on the test images."""
        return {name: float(value) for name, value in self.loss(self.to_device(self.test_pairs)).items()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        table = anynorm.compare(["bn", "gn:4"], [8], seeds=1, task="denoising:Denoising", epochs=1, processes=1, runs=folder)
    print(*(f"{row['norm']:5} rmse {row['rmse grey levels, batch 8']} of 16 grey levels" for row in table), sep="\n")

# Output:
# bn    rmse 3.875 of 16 grey levels
# gn:4  rmse 3.835 of 16 grey levels
