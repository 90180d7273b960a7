"""Style losses between features, and the total variation of images.

    moments   Σ over layers: MSE(μ(f), μ(f_s)) + MSE(σ(f), σ(f_s)),  σ² unbiased          (Huang & Belongie 2017)
    Gram      Σ over layers: ‖G(f) − G(f_s)‖²_F,  G = F Fᵀ/(c h w)                         (Johnson et al. 2016)

Both are means over the samples. Features are dictionaries from the name of a layer to its features, as returned by `vgg.VGG`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from anynorm.core.affine import inverse_std

EPS = 1e-5
Features = Mapping[str, Tensor]


def mean_std(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation per sample and channel, each (n, c); unbiased variance, as in AdaIN's release."""
    var, mean = features.var((2, 3)), features.mean((2, 3))
    return mean, inverse_std(var, EPS).reciprocal()


def moment_loss(features: Features, style: Features) -> Tensor:
    """Return the moment loss between features and the features of a style, summed over the layers of `style`."""
    losses = []
    for name, target in style.items():
        for actual, wanted in zip(mean_std(features[name]), mean_std(target), strict=True):
            losses.append(mse_loss(actual, wanted.expand_as(actual)))
    return torch.stack(losses).sum()


def gram(features: Tensor) -> Tensor:
    """Return the Gram matrix per sample, (n, c, c), divided by c h w; computed in float32, because the sums are large."""
    with torch.autocast(features.device.type, enabled=False):
        rows = features.float().flatten(2)
        return rows @ rows.transpose(1, 2) / rows[0].numel()


def gram_loss(features: Features, grams: Features) -> Tensor:
    """Return the Gram loss between features and the Gram matrices (1 or n, c, c) of a style."""
    losses = [(gram(features[name]) - target).square().sum((1, 2)).mean() for name, target in grams.items()]
    return torch.stack(losses).sum()


def total_variation(images: Tensor) -> Tensor:
    """Return the sum of squared differences between neighboring pixels, per sample."""
    vertical, horizontal = images.diff(dim=2).square().sum(), images.diff(dim=3).square().sum()
    return (vertical + horizontal) / len(images)
