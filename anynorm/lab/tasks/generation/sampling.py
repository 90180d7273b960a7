"""Images of a class from a generator."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from anynorm.io.pictures import encode_png, image_grid
from anynorm.lab.tasks.generation.class_gradients import spread_classes
from anynorm.layers.conditioning import condition, conditional_layers
from anynorm.surgery.recalibrate import has_running_stats, recalibrate

CHUNK_SIZE = 250
"""Number of images that are generated at a time."""
MAX_ROWS, MAX_COLUMNS = 10, 10
"""Size of a picture of samples, in images."""


def generate(generator: nn.Module, z: Tensor, labels: Tensor) -> Tensor:
    """Return the images of latent vectors, with the norms of the generator conditioned on labels if they take them.

    If the generator's `forward` requires a second argument, the labels are also passed to it.
    """
    arguments = (z,) if can_call(generator, z) else (z, labels)
    with condition(generator, labels, strict=False):
        images: Tensor = generator(*arguments)
    return images


def can_call(network: nn.Module, *arguments: Tensor) -> bool:
    """Whether `forward` takes this number of arguments."""
    try:
        inspect.signature(network.forward).bind(*arguments)
    except TypeError:
        return False
    return True


@torch.no_grad()
def generate_uint8(generator: nn.Module, z: Tensor, labels: Tensor, device: torch.device) -> Tensor:
    """Generate images of latent vectors in chunks; return them as uint8 on the CPU."""
    chunks = split_batches(z, labels, CHUNK_SIZE)
    return torch.cat([to_uint8(generate(generator, *(x.to(device) for x in chunk))).cpu() for chunk in chunks])


def recalibrated(generator: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> nn.Module:
    """Return a copy of a generator in eval mode with recalibrated running statistics.

    For a moving average of weights, whose running statistics were collected with the weights before averaging.

    Args:
        generator: the generator.
        batches: latent vectors and labels.
    """
    generator = copy.deepcopy(generator).eval()
    if has_running_stats(generator):
        recalibrate(generator, batches, forward=lambda network, batch: generate(network, *batch))
    return generator


def is_collapsed(images: Tensor, labels: Tensor) -> bool:
    """Whether all images of each class are equal, so that they do not depend on the latent vectors; False for single images."""
    groups = [images[labels == label] for label in set(labels.tolist())]
    return all(bool((group == group[0]).all()) for group in groups) and any(len(group) > 1 for group in groups)


def takes_classes(generator: nn.Module) -> bool:
    """Whether a module of the generator takes a condition, or its `forward` requires labels."""
    has_conditional_layer = bool(conditional_layers(generator))
    return has_conditional_layer or not can_call(generator, torch.empty(0))


def to_uint8(images: Tensor) -> Tensor:
    """Return images in [−1, 1] as uint8."""
    return ((images.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def split_batches(x: Tensor, labels: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return batches of x and labels."""
    return zip(torch.split(x, size), torch.split(labels, size), strict=True)


def sample_picture(images: Tensor, labels: Tensor, num_classes: int) -> bytes | None:
    """Return a PNG with one row per class, for classes at equal distances; None if a class has no image.

    Args:
        images: uint8 images (n, c, h, w).
        labels: their classes, (n,).
        num_classes: number of classes.
    """
    rows = [images[labels == label][:MAX_COLUMNS] for label in spread_classes(num_classes, MAX_ROWS)]
    columns = min(len(row) for row in rows)
    return encode_png(image_grid(torch.cat([row[:columns] for row in rows]), columns)) if columns else None
