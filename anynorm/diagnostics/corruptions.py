"""Corruptions of images at severities 1 to 5, with the parameters that Hendrycks & Dietterich (2019) chose for CIFAR-10-C.

    gaussian_noise    x + N(0, s²)                                s = 0.04 0.06 0.08 0.09 0.10
    gaussian_blur     x * Gaussian of standard deviation s        s = 0.4  0.6  0.7  0.8  1     pixels
    brightness        value of HSV + s                            s = 0.05 0.1  0.15 0.2  0.3
    contrast          (x − mean) s + mean                         s = 0.75 0.5  0.4  0.3  0.15  mean of each image and channel

Values of x are in [0, 1], and results are clipped to this range. The severities were chosen for 32 × 32 pixels; the same blur
removes more detail from smaller images. Unlike CIFAR-10-C, which truncates to uint8, results are rounded; random numbers differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from anynorm.diagnostics.adaptation import Target
from anynorm.errors import DataError, unknown_name

Corruption = Callable[[Tensor, int, torch.Generator], Tensor]
NOISE_STD = (0.04, 0.06, 0.08, 0.09, 0.10)
BLUR_STD = (0.4, 0.6, 0.7, 0.8, 1.0)
BRIGHTNESS = (0.05, 0.1, 0.15, 0.2, 0.3)
CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)
SEVERITIES = (1, 2, 3, 4, 5)
ROUNDING = 1e-3
"""Tolerance for values outside [0, 1] after the standardization of images is inverted."""
BLUR_RADIUS = 4
"""Radius of the blur in standard deviations, as in scipy and scikit-image."""


def gaussian_noise(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Add Gaussian noise drawn from a CPU generator."""
    noise = torch.randn(x.shape, generator=generator).to(x)
    return x + NOISE_STD[severity - 1] * noise


def gaussian_blur(x: Tensor, severity: int, _: torch.Generator) -> Tensor:
    """Convolve rows and columns with a Gaussian, with edge values replicated as padding."""
    std = BLUR_STD[severity - 1]
    radius = int(BLUR_RADIUS * std + 0.5)
    kernel = torch.exp(-(torch.arange(-radius, radius + 1, dtype=x.dtype, device=x.device).square()) / (2 * std**2))
    kernel = (kernel / kernel.sum()).expand(x.shape[1], 1, 1, -1)
    padded = torch.nn.functional.pad(x, (radius,) * 4, mode="replicate")
    rows = torch.nn.functional.conv2d(padded, kernel, groups=x.shape[1])
    return torch.nn.functional.conv2d(rows, kernel.mT, groups=x.shape[1])


def brightness(x: Tensor, severity: int, _: torch.Generator) -> Tensor:
    """Increase the value in HSV space, the maximum over channels; hue and saturation, and so the ratios of channels, are kept."""
    value = x.amax(1, keepdim=True)
    brighter = (value + BRIGHTNESS[severity - 1]).clamp(max=1)
    return torch.where(value > 0, x * (brighter / value.clamp(min=torch.finfo(x.dtype).tiny)), brighter)


def contrast(x: Tensor, severity: int, _: torch.Generator) -> Tensor:
    """Scale the deviations from the mean of each image and channel."""
    mean = x.mean((2, 3), keepdim=True)
    return mean + CONTRAST[severity - 1] * (x - mean)


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": gaussian_noise,
    "gaussian_blur": gaussian_blur,
    "brightness": brightness,
    "contrast": contrast,
}
"""Functions (images in [0, 1], severity, generator) → images, whose values may be outside [0, 1]."""


def corrupt(images: Tensor, name: str, severity: int, generator: torch.Generator) -> Tensor:
    """Corrupt images.

    Args:
        images: (n, c, h, w), uint8, or floating point in [0, 1].
        name: a name of `CORRUPTIONS`.
        severity: 1 to 5.
        generator: CPU generator of the noise.

    Returns:
        Corrupted images of the same shape and dtype.

    Raises:
        DataError: if an argument is out of range.

    >>> corrupt(torch.full((1, 1, 2, 2), 0.5), "brightness", 5, torch.Generator())[0, 0]
    tensor([[0.8000, 0.8000],
            [0.8000, 0.8000]])
    """
    check_corruption(name, severity)
    if images.dim() != 4 or not (images.dtype == torch.uint8 or images.is_floating_point()):
        raise DataError(f"images must be (n, c, h, w) of uint8 or floating point; got {tuple(images.shape)} of {images.dtype}.")
    if images.dtype == torch.uint8:
        corrupted = CORRUPTIONS[name](images.float() / 255, severity, generator).clamp(0, 1)
        return (255 * corrupted).round().to(torch.uint8)
    if images.numel() and not (images.min() >= 0 and images.max() <= 1):
        raise DataError(
            f"floating-point images must be in [0, 1]; got values in [{float(images.min()):.3g}, {float(images.max()):.3g}]. "
            "Corrupt images before they are standardized."
        )
    return CORRUPTIONS[name](images, severity, generator).clamp(0, 1)


def check_corruption(name: str, severity: int) -> None:
    """Check the name and the severity of a corruption.

    Raises:
        DataError: if the corruption is unknown, or the severity is not one of 1 to 5.
    """
    if name not in CORRUPTIONS:
        raise DataError(unknown_name("corruption", name, CORRUPTIONS))
    if severity not in SEVERITIES:
        raise DataError(f"severity must be one of {' '.join(map(str, SEVERITIES))}; got {severity!r}.")


def corruption_targets(
    labeled: Iterable[tuple[Tensor, Tensor]],
    unlabeled: Iterable[Any] | None = None,
    *,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    corruptions: Sequence[str] = tuple(CORRUPTIONS),
    severities: Sequence[int] = (1, 3, 5),
    seed: int = 0,
) -> Iterator[Target]:
    """Yield the uncorrupted data, then the data with each corruption and severity, for `anynorm.diagnostics.adaptation`.

    Args:
        labeled: batches (x, labels) of standardized images x = (image − mean) / std, with image in [0, 1].
        unlabeled: batches from which statistics are estimated; None for the images of `labeled`, without their labels.
        mean: mean of each channel, or one value for all channels.
        std: standard deviation of each channel, or one value for all channels.
        corruptions: names of `CORRUPTIONS`.
        severities: 1 to 5.
        seed: seed of the noise; all severities use the same noise, scaled.

    Raises:
        DataError: if a corruption or severity is unknown, or x · std + mean is not in [0, 1].
    """
    for name, severity in product(corruptions, severities):
        check_corruption(name, severity)
    test = list(labeled)
    train = [_first(batch) for batch in (test if unlabeled is None else unlabeled)]
    yield Target("uncorrupted", train, test)
    for name, severity in product(corruptions, severities):
        generator = torch.Generator().manual_seed(seed)

        def corrupted(x: Tensor, name: str = name, severity: int = severity, source: torch.Generator = generator) -> Tensor:
            image_mean, image_std = (_per_channel(values, x) for values in (mean, std))
            images = corrupt(_to_images(x, image_mean, image_std), name, severity, source)
            return (images - image_mean) / image_std

        new_test = [(corrupted(x), labels) for x, labels in test]
        yield Target(
            f"{name} {severity}", [x for x, _ in new_test] if unlabeled is None else list(map(corrupted, train)), new_test
        )


def _first(batch: Any) -> Tensor:
    x: Tensor = batch[0] if isinstance(batch, tuple | list) else batch
    return x


def _per_channel(values: Sequence[float], x: Tensor) -> Tensor:
    if len(values) not in (1, x.shape[1]):
        raise DataError(f"mean and std must have one value, or one per channel of {x.shape[1]}; got {len(values)}.")
    return torch.tensor(values, dtype=x.dtype, device=x.device)[:, None, None]


def _to_images(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Invert the standardization: return images in [0, 1]."""
    images = x * std + mean
    low, high = float(images.min()), float(images.max())
    if low < -ROUNDING or high > 1 + ROUNDING:
        raise DataError(
            f"x · std + mean must be in [0, 1]; got values in [{low:.3g}, {high:.3g}]. Pass the mean and std by which the images "
            "were standardized (0 and 1 for images in [0, 1])."
        )
    return images.clamp(0, 1)
