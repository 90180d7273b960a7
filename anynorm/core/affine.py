"""Affine stages after the normalization: h ← γ h + β.

    PerChannel        γ, β per channel                                       (BN and most others)
    PerChannelScale   γ per channel, β = 0                                   (RMSNorm; torch's `bias=False`)
    PerClass          γᵢ, βᵢ per class i and channel                         (CCBN)
    Style             γ = σ(y), β = μ(y), the moments of style features y    (AdaIN)

A sandwich is a shared stage followed by one per class: h = γᵢ (γ_sa x̂ + β_sa) + βᵢ   (sabn eq. 3, in the form of eqs. 8 and 10).
Without stages, h = x̂. `names` of a stage are the names of its parameters, which belong to the layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Coefficients = tuple[Tensor, Tensor]
"""γ and β, tensors that broadcast to (n, c, strips)."""


@dataclass(frozen=True)
class PerChannel:
    """One scale and shift per channel, initialized to γ = 1, β = 0."""

    names = ("weight", "bias")

    def shape(self, num_features: int) -> tuple[int, ...]:
        """Return the shape of γ and of β."""
        return (num_features,)

    def reset(self, gamma: Tensor, beta: Tensor) -> None:
        """Initialize γ = 1, β = 0."""
        nn.init.ones_(gamma)
        nn.init.zeros_(beta)

    def __call__(self, params: list[Tensor], condition: Any) -> Coefficients:
        """Return γ and β as (1, c, 1)."""
        gamma, beta = params
        return gamma[None, :, None], beta[None, :, None]


@dataclass(frozen=True)
class PerChannelScale:
    """One scale per channel without a shift, initialized to γ = 1."""

    names = ("weight",)

    def shape(self, num_features: int) -> tuple[int, ...]:
        """Return the shape of γ."""
        return (num_features,)

    def reset(self, gamma: Tensor) -> None:
        """Initialize γ = 1."""
        nn.init.ones_(gamma)

    def __call__(self, params: list[Tensor], condition: Any) -> Coefficients:
        """Return γ and β = 0 as (1, c, 1)."""
        gamma = params[0][None, :, None]
        return gamma, torch.zeros_like(gamma)


@dataclass(frozen=True)
class PerClass:
    """One scale and shift per class and channel.

    Args:
        num_classes: number of classes or domains.
        init_std: standard deviation of γ at initialization: 0.02 for class-conditional and sandwich norms (sabn), 0 for AuxBN.
    """

    num_classes: int
    init_std: float = field(default=0.02, compare=False)
    names = ("class_weight", "class_bias")

    def shape(self, num_features: int) -> tuple[int, ...]:
        """Return the shape of γ and of β."""
        return (self.num_classes, num_features)

    def reset(self, gamma: Tensor, beta: Tensor) -> None:
        """Initialize γ ~ N(1, init_std²), β = 0."""
        nn.init.normal_(gamma, 1.0, self.init_std)
        nn.init.zeros_(beta)

    def __call__(self, params: list[Tensor], condition: Any) -> Coefficients:
        """Return γ and β of the class of each sample as (n, c, 1)."""
        gamma, beta = (table.index_select(0, condition) for table in params)
        return gamma[..., None], beta[..., None]


@dataclass(frozen=True)
class Style:
    """Scale and shift by the standard deviation and mean of style features; without parameters."""

    names = ()

    def shape(self, num_features: int) -> tuple[int, ...]:
        """Return an empty shape: a style has no parameters."""
        return ()

    def reset(self) -> None:
        """Do nothing: a style has no parameters."""

    def __call__(self, params: list[Tensor], condition: Any) -> Coefficients:
        """Return σ(y) and μ(y) as (n or 1, c, 1)."""
        mean, std = condition
        return std[..., None], mean[..., None]


Stage = PerChannel | PerChannelScale | PerClass | Style


def inverse_std(var: Tensor, eps: float) -> Tensor:
    """Return 1/sqrt(var + ε)."""
    return torch.rsqrt(var + eps)


def chain(inner: Coefficients, outer: Coefficients) -> Coefficients:
    """Return the composition of two stages: γ₂ (γ₁ h + β₁) + β₂.

    >>> two, three = torch.tensor(2.0), torch.tensor(3.0)
    >>> chain((two, three), (two, three))
    (tensor(4.), tensor(9.))
    """
    (gamma, beta), (outer_gamma, outer_beta) = inner, outer
    return outer_gamma * gamma, outer_gamma * beta + outer_beta
