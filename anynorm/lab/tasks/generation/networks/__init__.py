"""Generators and discriminators by name, for square images of most sizes, with a width multiplier.

Generators are built with BatchNorm; a task replaces it by other norms. A custom pair has the name `package.module:factory`; the
factory is called with the keyword arguments `shape` (a `DataShape`) and `width`, if it has them, and returns a `GAN`, or a
generator and a discriminator in this order. The inputs of a generator are latent vectors z, or z and labels, and it has the
attribute `latent_size`. The inputs of a discriminator are images in [−1, 1] and their labels; it returns one logit per image.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch import nn

from anynorm.errors import DataError, unknown_name
from anynorm.io.checkpoints import call_with_known, import_object
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models.channels import scale_channels
from anynorm.lab.tasks.generation.networks.blocks import conv2d, small_normal, spectral, xavier
from anynorm.lab.tasks.generation.networks.discriminator import Discriminator
from anynorm.lab.tasks.generation.networks.generators import AutoGANGenerator, BigGANGenerator, Generator, SharedEmbedding

Init = Callable[[nn.Module], nn.Module]
MIN_BOTTOM, MAX_BOTTOM = 4, 7
"""Range of the height and width of a generator's first feature map."""


class GAN(NamedTuple):
    """A generator and its discriminator."""

    generator: Any
    discriminator: Any


def sngan(shape: DataShape, width: float = 1.0) -> GAN:
    """Build the ResNets of SNGAN: 256 and 128 channels up to 32 × 32 pixels; 512 to 64 and 64 to 512 for larger images."""
    bottom, doublings = split_size(shape)
    generator = Generator(
        128, _generator_channels(doublings, width), bottom, shape.channels, conv=_layer(conv2d, xavier), linear=_linear(xavier)
    )
    return GAN(generator, _discriminator(shape, doublings, width, xavier, channels=128))


def autogan(shape: DataShape, width: float = 1.0) -> GAN:
    """Build AutoGAN's best generator, with 256 channels, and the discriminator of SNGAN."""
    bottom, doublings = split_size(shape)
    channels = [scale_channels(256, width)] * (doublings + 1)
    generator = AutoGANGenerator(128, channels, bottom, shape.channels, conv=_layer(conv2d, xavier), linear=_linear(xavier))
    return GAN(generator, _discriminator(shape, doublings, width, xavier, channels=128))


def biggan(shape: DataShape, width: float = 1.0, attention: bool = False, shared_embedding: bool = False) -> GAN:
    """Build the ResNets of BigGAN for CIFAR: 256 channels in both, both spectrally normalized.

    Args:
        shape: shape of the images, and the number of classes.
        width: multiplier of the number of channels.
        attention: whether both networks have self-attention, at half of the resolution.
        shared_embedding: whether the affine of the generator's norms is predicted from a shared embedding of the class.
    """
    bottom, doublings = split_size(shape)
    conv = _layer(conv2d, lambda layer: spectral(small_normal(layer)))
    linear = _linear(lambda layer: spectral(small_normal(layer)))
    generator = BigGANGenerator(
        128,
        _generator_channels(doublings, width),
        bottom,
        shape.channels,
        attention=max(1, doublings - 1) if attention else 0,
        embedding=SharedEmbedding(shape.num_classes, 128) if shared_embedding else None,
        conv=conv,
        linear=linear,
    )
    return GAN(generator, _discriminator(shape, doublings, width, small_normal, channels=256, attention=int(attention)))


GANS: dict[str, Callable[..., GAN]] = {"sngan": sngan, "biggan": biggan, "autogan": autogan}


def build_gan(name: str, shape: DataShape, width: float | None = None, flags: Iterable[str] = ()) -> GAN:
    """Build a generator and a discriminator by name.

    Args:
        name: a name of `GANS`, or `package.module:factory`.
        shape: shape of the images, and the number of classes.
        width: multiplier of the number of channels; None for the default.
        flags: names of boolean arguments of the factory to set to True, such as "attention".

    Raises:
        DataError: if the name is unknown, the factory does not have an argument of `flags`, or does not return a generator and a
            discriminator.
    """
    if name not in GANS and ":" not in name:
        raise DataError(unknown_name("model for generation", name, GANS, "package.module:factory"))
    factory = GANS[name] if name in GANS else import_object(name)
    for flag in flags:
        if callable(factory) and flag not in inspect.signature(factory).parameters:
            raise DataError(f"{name} has no option {flag}. Usable: biggan.")
    pair = call_with_known(
        name, factory, {"shape": shape, "width": 1.0 if width is None else width, **dict.fromkeys(flags, True)}
    )
    if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(network, nn.Module) for network in pair)):
        raise DataError(f"{name!r} must return a generator and a discriminator; got {type(pair).__name__}.")
    generator, discriminator = pair
    if not isinstance(getattr(generator, "latent_size", None), int):
        raise DataError(f"the generator of {name!r} must have the attribute latent_size, the length of a latent vector.")
    return GAN(generator, discriminator)


def split_size(shape: DataShape) -> tuple[int, int]:
    """Return the height of the first feature map and the number of blocks that double it.

    Raises:
        DataError: if the images are not square, or their height is not 4 to 7 times 2, 4, 8, ….

    >>> split_size(DataShape(3, 32, 32, 10)), split_size(DataShape(1, 28, 28, 10))
    ((4, 3), (7, 2))
    """
    bottom, doublings = shape.height, 0
    while bottom % 2 == 0 and bottom // 2 >= MIN_BOTTOM:
        bottom, doublings = bottom // 2, doublings + 1
    if shape.height != shape.width or not MIN_BOTTOM <= bottom <= MAX_BOTTOM or not doublings:
        raise DataError(
            f"generators need square images whose height is 4, 5, 6 or 7 times 2, 4, 8, …; got {shape.height} × "
            f"{shape.width} pixels. Usable: image_size=32, 48, 64, 96, 128 with a folder."
        )
    return bottom, doublings


def _generator_channels(doublings: int, width: float) -> list[int]:
    channels = [256] * (doublings + 1) if doublings <= 3 else [512] * (doublings - 3) + [256, 256, 128, 64]
    return [scale_channels(count, width) for count in channels]


def _discriminator(
    shape: DataShape, doublings: int, width: float, init: Init, *, channels: int, attention: int = 0
) -> Discriminator:
    """Build a discriminator: for up to three doublings, two of its four blocks halve the resolution; else all but the last do."""
    counts = [channels] * 4 if doublings <= 3 else [64, 128, 256, *[512] * (doublings - 3), 512]
    num_down = 2 if doublings <= 3 else doublings
    return Discriminator(
        [shape.channels, *(scale_channels(count, width) for count in counts)],
        num_down,
        shape.num_classes,
        conv=_layer(conv2d, lambda layer: spectral(init(layer))),
        linear=_layer(lambda inputs, outputs: nn.Linear(inputs, outputs, bias=False), lambda layer: spectral(init(layer))),
        embedding=_layer(nn.Embedding, lambda layer: spectral(init(layer))),
        attention=attention,
    )


def _layer(make: Callable[..., nn.Module], init: Init) -> Callable[..., nn.Module]:
    return lambda *sizes, **options: init(make(*sizes, **options))


def _linear(init: Init) -> Callable[..., nn.Module]:
    return _layer(nn.Linear, init)
