"""Noise and confusion of the statistics of BGN.

The paper explains accuracies by "noisy" statistics of too few values and "confused" statistics of too many, and defines neither.
Here, for the input x of a norm, flattened to (N, D) and divided into G groups of D/G features:

    noise        sd over batches of a group's mean, divided by the standard deviation within the group
    confusion    share of the variance within a group that lies between the means of its features

Noise falls with the number of values N D/G of a statistic. Confusion is 0 if all features of a group have one mean, and near 1 if
a statistic that they share describes none of them. Both are means over groups and layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anynorm.diagnostics.buffers import preserve_buffers
from anynorm.diagnostics.observe import observe_inputs
from anynorm.diagnostics.validation import find_readable_norms
from anynorm.errors import DiagnosticError
from anynorm.surgery.find import NormSite


class GroupStatistics(NamedTuple):
    """Properties of the statistics of a network; see the module."""

    noise: float
    confusion: float


def group_statistics(model: nn.Module, batches: Iterable[Tensor], num_groups: int) -> GroupStatistics:
    """Measure the statistics of groups of a network in train mode, at fixed parameters; the network is not changed.

    Args:
        model: the network.
        batches: at least two batches of standardized images.
        num_groups: G.

    Raises:
        DiagnosticError: if there are fewer than two batches, or the features of a layer cannot be divided into G groups.
    """
    inputs: dict[NormSite, list[Tensor]] = {}
    sites = find_readable_norms(model)

    def record(site: NormSite, x: Tensor, _: Tensor | None) -> None:
        inputs.setdefault(site, []).append(x.flatten(1).double())

    training = model.training
    try:
        model.train()
        with torch.no_grad(), preserve_buffers(model), observe_inputs(sites, record):
            for images in batches:
                model(images)
    finally:
        model.train(training)
    layers = [layer_statistics(series, num_groups) for series in inputs.values()]
    return GroupStatistics(*(fmean(values) for values in zip(*layers, strict=True)))


def layer_statistics(batches: list[Tensor], num_groups: int) -> GroupStatistics:
    """Return noise and confusion of the groups of one layer.

    Args:
        batches: at least two inputs (N, D).
        num_groups: G, a divisor of D.

    >>> x = torch.tensor([[0.0, 4.0], [2.0, 6.0]])                # two features with means 1 and 5, variances 1
    >>> layer_statistics([x, x], 1), layer_statistics([x, x], 2)
    (GroupStatistics(noise=0.0, confusion=0.8), GroupStatistics(noise=0.0, confusion=0.0))
    """
    if len(batches) < 2:
        raise DiagnosticError(f"the noise of statistics needs at least 2 batches; got {len(batches)}.")
    num_features = batches[0].shape[1]
    if num_features % num_groups:
        raise DiagnosticError(f"{num_features} features cannot be divided into {num_groups} equal groups.")
    x = torch.stack(batches)  # (B, N, D)
    groups = x.reshape(*x.shape[:2], num_groups, -1)  # (B, N, G, S)
    means = groups.mean((1, 3))  # (B, G)
    var = groups.var((0, 1, 3), unbiased=False).clamp_min(1e-12)  # (G,)
    noise = means.std(0) / var.sqrt()
    between = groups.mean((0, 1)).var(1, unbiased=False)  # (G, S) -> (G,)
    return GroupStatistics(round(float(noise.mean()), 4), round(float((between / var).mean()), 4))
