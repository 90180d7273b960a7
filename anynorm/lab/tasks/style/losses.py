"""Style losses between features, and the total variation of images.

    moments   Σ over layers: MSE(μ(f), μ(f_s)) + MSE(σ(f), σ(f_s)),  σ² unbiased          (Huang & Belongie 2017)
    Gram      Σ over layers: ‖G(f) − G(f_s)‖²_F,  G = F Fᵀ/(c h w)                         (Johnson et al. 2016)

Losses are those of each sample, (n,). Features are dictionaries from the name of a layer to its features, see `vgg.VGG`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from anynorm.core.affine import inverse_std
from anynorm.lab.training.evaluation import Evaluation

EPS = 1e-5
Features = Mapping[str, Tensor]


def mean_std(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation per sample and channel, each (n, c); unbiased variance, as in AdaIN's release."""
    var, mean = features.var((2, 3)), features.mean((2, 3))
    return mean, inverse_std(var, EPS).reciprocal()


def mean_losses(losses: Mapping[str, Tensor]) -> Evaluation:
    """Return the means of losses of test samples, with the losses as items."""
    values = {name: each.tolist() for name, each in losses.items()}
    return Evaluation({name: statistics.fmean(each) for name, each in values.items()}, {**values})


def squared_error(a: Tensor, b: Tensor) -> Tensor:
    """Return the mean squared difference of each sample."""
    return mse_loss(a, b.expand_as(a), reduction="none").flatten(1).mean(1)


def moment_loss(features: Features, style: Features) -> Tensor:
    """Return the moment loss between features and the features (1 or n, …) of a style, summed over the layers of `style`."""
    losses = []
    for name, target in style.items():
        for actual, wanted in zip(mean_std(features[name]), mean_std(target), strict=True):
            losses.append(squared_error(actual, wanted))
    return torch.stack(losses).sum(0)


def gram(features: Tensor) -> Tensor:
    """Return the Gram matrix per sample, (n, c, c), divided by c h w; computed in float32, because the sums are large."""
    with torch.autocast(features.device.type, enabled=False):
        rows = features.float().flatten(2)
        return rows @ rows.transpose(1, 2) / rows[0].numel()


def gram_loss(features: Features, grams: Features) -> Tensor:
    """Return the Gram loss between features and the Gram matrices (1 or n, c, c) of a style."""
    losses = [(gram(features[name]) - target).square().sum((1, 2)) for name, target in grams.items()]
    return torch.stack(losses).sum(0)


def total_variation(images: Tensor) -> Tensor:
    """Return the sum of squared differences between neighboring pixels."""
    return images.diff(dim=2).square().sum((1, 2, 3)) + images.diff(dim=3).square().sum((1, 2, 3))
