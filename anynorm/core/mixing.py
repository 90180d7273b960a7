"""Mixing of the statistics s of several cuts: Σ wₖ sₖ, with weights w computed from learned logits λ.

    Softmax      w = softmax(λ)               (sn eq. 5; λ is initialized to 1, so all weights are equal at first)
    Argmax       w = one-hot(argmax λ)        (sn sec. 2.1: "sparse SN", one cut per layer)
    Precomputed  w = λ                        (for layers that compute the weights themselves)

The mean and the variance have separate λ. With `groups` > 1, each contiguous group of channels has its own λ ("group SN").
Variances are mixed, not standard deviations; ε is added afterwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anynorm.core.cuts import divisors, format_numbers
from anynorm.errors import SpecError


@dataclass(frozen=True)
class Mixing(ABC):
    """A function from logits λ to mixing weights.

    Args:
        groups: number of channel groups, each with its own λ.
    """

    groups: int = 1
    is_trainable: ClassVar[bool]

    @abstractmethod
    def weights(self, logits: Tensor) -> Tensor:
        """Return the mixing weights for λ; both have the shape (…, k)."""

    def weighted(self, weight: Tensor, table: Tensor) -> Tensor:
        """Return a table of statistics multiplied by its weight."""
        return weight * table

    def weights_by_channel(self, logits: Tensor, channels: int) -> Tensor:
        """Return the mixing weights as (1, k), or as (channels, k) if `groups` > 1."""
        weights = self.weights(logits)
        return weights[None] if self.groups == 1 else weights.repeat_interleave(channels // self.groups, dim=0)


@dataclass(frozen=True)
class Softmax(Mixing):
    """Softmax weights, which sum to 1."""

    is_trainable = True

    def weights(self, logits: Tensor) -> Tensor:
        """Return softmax(λ)."""
        return logits.softmax(-1)


@dataclass(frozen=True)
class Argmax(Mixing):
    """One-hot weights, which select the cut with the largest λ."""

    is_trainable = False

    def weights(self, logits: Tensor) -> Tensor:
        """Return a one-hot vector; ties go to the first cut."""
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)

    def weighted(self, weight: Tensor, table: Tensor) -> Tensor:
        """Return the table where its weight is positive and 0 elsewhere; a product would be NaN for 0 · NaN."""
        return torch.where(weight > 0, table, 0.0)


@dataclass(frozen=True)
class Precomputed(Mixing):
    """Weights that a layer has computed and passes in place of λ."""

    is_trainable = True

    def weights(self, logits: Tensor) -> Tensor:
        """Return the weights unchanged."""
        return logits


def check_groups(mixing: Mixing, num_features: int) -> None:
    """Check that the number of channels is divisible by the number of channel groups of the mixing weights.

    Raises:
        SpecError: if it is not.
    """
    if num_features % mixing.groups:
        raise SpecError(
            f"The mixing weights of {mixing.groups} channel groups need a channel count divisible by {mixing.groups}; got "
            f"{num_features} channels. Usable: {format_numbers(divisors(num_features))}."
        )


def logits_shape(mixing: Mixing, num_cuts: int) -> tuple[int, ...]:
    """Return the shape of λ for a number of cuts k: (k,), or (groups, k)."""
    return (num_cuts,) if mixing.groups == 1 else (mixing.groups, num_cuts)


def mix(tables: Sequence[Tensor], mixing: Mixing, weights: Tensor | None) -> Tensor:
    """Return the weighted sum Σ wₖ tableₖ.

    Args:
        tables: the statistics of each cut; tensors that broadcast to (n, c, strips).
        mixing: the rule from which the weights were computed.
        weights: the mixing weights, (1 or c, k); None for a single table, which is returned unchanged.
    """
    if weights is None:
        return tables[0]
    terms = (mixing.weighted(weights[:, k, None], table) for k, table in enumerate(tables))
    return sum(terms, start=torch.zeros_like(tables[0]))
