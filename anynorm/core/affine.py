"""What follows the normalisation: a chain of stages, each h <- γ h + β.

    PerChannel   γ, β of each channel                                        (BN and most others)
    PerClass     γᵢ, βᵢ of each channel and class i                          (CCBN)
    Style        γ = σ(y), β = μ(y), moments of style features y             (AdaIN)

A sandwich is two stages, shared then own: h = γᵢ (γ_sa x̂ + β_sa) + βᵢ       (sabn eq. 3, as its eqs. 8 and 10 show it)
No stage at all leaves x̂. A stage says which parameters it wants; the layer owns them, under flat names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Coefficients = tuple[Tensor, Tensor]
"""γ and β, tables that broadcast to (n, c, t)."""


@dataclass(frozen=True)
class PerChannel:
    """Scales and shifts each channel; starts as the identity."""

    names = ("weight", "bias")

    def shape(self, num_features: int) -> tuple[int, ...]:
        """Shape of γ and of β."""
        return (num_features,)

    def reset(self, gamma: Tensor, beta: Tensor) -> None:
        """Start at γ = 1, β = 0."""
        nn.init.ones_(gamma)
        nn.init.zeros_(beta)

    def __call__(self, owned: list[Tensor], condition: Any) -> Coefficients:
        """Give γ and β as (1, c, 1)."""
        gamma, beta = owned
        return gamma[None, :, None], beta[None, :, None]


@dataclass(frozen=True)
class PerClass:
    """Scales and shifts each channel by the sample's class.

    Args:
        deviation: of γ at the start: 0.02 for classes, 0 where each domain has a whole BN of its own.
    """

    classes: int
    deviation: float = field(default=0.02, compare=False)
    names = ("class_weight", "class_bias")

    def shape(self, num_features: int) -> tuple[int, ...]:
        """Shape of γ and of β."""
        return (self.classes, num_features)

    def reset(self, gamma: Tensor, beta: Tensor) -> None:
        """Start at γ ~ N(1, deviation), β = 0."""
        nn.init.normal_(gamma, 1.0, self.deviation)
        nn.init.zeros_(beta)

    def __call__(self, owned: list[Tensor], condition: Any) -> Coefficients:
        """Give each sample its class's γ and β as (n, c, 1)."""
        gamma, beta = (table.index_select(0, condition) for table in owned)
        return gamma[..., None], beta[..., None]


@dataclass(frozen=True)
class Style:
    """Scales and shifts to the moments of style features; owns nothing."""

    names = ()

    def shape(self, num_features: int) -> tuple[int, ...]:
        """Own nothing."""
        return ()

    def reset(self) -> None:
        """Start with nothing."""

    def __call__(self, owned: list[Tensor], condition: Any) -> Coefficients:
        """Give σ(y) and μ(y) as (n or 1, c, 1)."""
        mean, std = condition
        return std[..., None], mean[..., None]


Stage = PerChannel | PerClass | Style


def standardize(var: Tensor, eps: float) -> Coefficients:
    """Write x̂ = (x − mean)/sqrt(var + ε) as a stage on x − mean."""
    gamma = torch.rsqrt(var + eps)
    return gamma, torch.zeros_like(gamma)


def chain(inner: Coefficients, outer: Coefficients) -> Coefficients:
    """Compose two stages: γ₂ (γ₁ h + β₁) + β₂.

    >>> two, three = torch.tensor(2.0), torch.tensor(3.0)
    >>> chain((two, three), (two, three))
    (tensor(4.), tensor(9.))
    """
    (gamma, beta), (outer_gamma, outer_beta) = inner, outer
    return outer_gamma * gamma, outer_gamma * beta + outer_beta
