"""The example of diagnose.md: a ResNet-20 for CIFAR-10, and test images taken at night.

Night images are half as bright, with Gaussian noise of standard deviation 0.04 (pixels are in [0, 1]).
"""

from pathlib import Path

import torch
from torch import Tensor

from anynorm import read_state_dict
from anynorm.lab import CifarResNet, fetch_cifar_weights, load_dataset

MEAN, STD = (torch.tensor(values)[:, None, None] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
NUM_IMAGES = 1000
BATCH_SIZE = 100


def network(checkpoint: str | None = None) -> CifarResNet:
    """Return the pretrained network, or the same network with another checkpoint."""
    model = CifarResNet(20)
    path = fetch_cifar_weights(20) if checkpoint is None else Path(checkpoint)
    model.load_state_dict(read_state_dict(path))
    return model


def load_batches(split: str, *, dark: bool) -> list[tuple[Tensor, Tensor]]:
    """Return the first images of a split in batches, standardized as in training."""
    data = load_dataset("cifar10")
    images, labels = data.test if split == "test" else data.train
    pixels = images[:NUM_IMAGES].float() / 255
    if dark:
        noise = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0))
        pixels = (0.5 * pixels + 0.04 * noise).clamp(0, 1)
    x = (pixels - MEAN) / STD
    return [(x[k : k + BATCH_SIZE], labels[k : k + BATCH_SIZE]) for k in range(0, NUM_IMAGES, BATCH_SIZE)]


def day() -> list[tuple[Tensor, Tensor]]:
    """Return the unchanged test images."""
    return load_batches("test", dark=False)


def night() -> list[tuple[Tensor, Tensor]]:
    """Return the test images at night."""
    return load_batches("test", dark=True)


def night_unlabeled() -> list[Tensor]:
    """Return other images at night, without labels."""
    return [x for x, _ in load_batches("train", dark=True)]
