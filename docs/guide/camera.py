"""The example of domains.md: a small network for scikit-learn's digits, and the same digits from a new camera.

Images of the new camera have less contrast, are brighter, and have noise. All computations are in float64, so that the numbers on
the page do not depend on the machine.
"""

import torch
from torch import Tensor, nn

import anynorm
from anynorm.lab import load_dataset

DIGITS = load_dataset("digits")
BATCH_SIZE = 60


def standardize(images: Tensor) -> Tensor:
    """Standardize images for the network."""
    x: Tensor = DIGITS.standardize(images).double()
    return x


def new_camera(images: Tensor, seed: int) -> Tensor:
    """Simulate the new camera for images with values from 0 to 255."""
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))
    return (0.4 * images.float() + 60 + 25 * noise).clamp(0, 255)


def network(norm: str = "bn") -> nn.Module:
    """Train a network on images of the old camera; this takes about a second."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), anynorm.make(norm, 16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), anynorm.make(norm, 32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    ).double()  # fmt: skip
    images, labels = DIGITS.train
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        for indices in torch.split(torch.randperm(len(images)), 32):
            loss = nn.functional.cross_entropy(model(standardize(images[indices])), labels[indices])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model.eval()


def split(x: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Split images and labels into batches of `BATCH_SIZE`."""
    return list(zip(torch.split(x, BATCH_SIZE), torch.split(labels, BATCH_SIZE), strict=True))


def old_test() -> list[tuple[Tensor, Tensor]]:
    """Return test images of the old camera with labels."""
    images, labels = DIGITS.test
    return split(standardize(images), labels)


def new_test() -> list[tuple[Tensor, Tensor]]:
    """Return test images of the new camera with labels, which are used only to measure accuracy."""
    images, labels = DIGITS.test
    return split(standardize(new_camera(images, seed=0)), labels)


def new_unlabeled() -> Tensor:
    """Return 256 other images of the new camera, without labels."""
    return standardize(new_camera(DIGITS.train[0][:256], seed=1))
