"""The case of diagnose.md: a ResNet-20 that reads CIFAR-10 well, and pictures from a camera in the dark.

Pictures are half as bright, and noise of 0.04 (on a scale of 0 to 1) is added.
"""

from pathlib import Path

import torch
from torch import Tensor

from anynorm.data.download import find_file
from anynorm.data.readers import cifar10
from anynorm.io.checkpoints import read_state_dict
from anynorm.models.cifar_resnet import CifarResNet

MEAN, STD = (torch.tensor(values)[:, None, None] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def network(checkpoint: str | None = None) -> CifarResNet:
    """Load the pretrained network, or another checkpoint of it."""
    model = CifarResNet(20)
    path = find_file("cifar10_resnet_pretrained/resnet20-*.th") if checkpoint is None else Path(checkpoint)
    model.load_state_dict(read_state_dict(path))
    return model


def batches(split: str, *, dark: bool) -> list[tuple[Tensor, Tensor]]:
    """Give the first 1000 pictures of a split in batches of 250, standardised as the network was trained."""
    images, labels = cifar10(split)
    pixels = images[:1000].float() / 255
    if dark:
        noise = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0))
        pixels = (0.5 * pixels + 0.04 * noise).clamp(0, 1)
    x = (pixels - MEAN) / STD
    return [(x[k : k + 250], labels[k : k + 250]) for k in range(0, 1000, 250)]


def day() -> list[tuple[Tensor, Tensor]]:
    """Give test pictures as they are."""
    return batches("test", dark=False)


def night() -> list[tuple[Tensor, Tensor]]:
    """Give test pictures taken in the dark."""
    return batches("test", dark=True)


def night_unlabelled() -> list[Tensor]:
    """Give other pictures taken in the dark, without labels."""
    return [x for x, _ in batches("train", dark=True)]
