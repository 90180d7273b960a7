"""How the statistics of several cuts become one: Σ wₖ sₖ with learned weights.

    Softmax      w = softmax(λ)               (sn eq. 5; λ is initialized to 1, so the weights start equal)
    Argmax       w = one-hot(argmax λ)        (sn sec. 2.1: "sparse SN", one cut per layer)
    Precomputed  w = λ                        (a layer that computes its own weights)

Mean and variance have their own λ. With `groups` > 1 each contiguous group of channels has its own λ ("group SN"). Variances are
mixed, not standard deviations, and ε is added afterwards.
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
    """A rule from λ to mixing weights.

    Args:
        groups: the number of channel groups with their own λ.
    """

    groups: int = 1
    is_trainable: ClassVar[bool]

    @abstractmethod
    def weights(self, logits: Tensor) -> Tensor:
        """Return the weights for λ of shape (…, k)."""

    def weighted(self, weight: Tensor, table: Tensor) -> Tensor:
        """Return a table times its weight."""
        return weight * table

    def weights_by_channel(self, logits: Tensor, channels: int) -> Tensor:
        """Return the weights as (1, k), or as (channels, k) if channel groups have their own."""
        weights = self.weights(logits)
        return weights[None] if self.groups == 1 else weights.repeat_interleave(channels // self.groups, dim=0)


@dataclass(frozen=True)
class Softmax(Mixing):
    """Weights that sum to 1."""

    is_trainable = True

    def weights(self, logits: Tensor) -> Tensor:
        """Return softmax(λ)."""
        return logits.softmax(-1)


@dataclass(frozen=True)
class Argmax(Mixing):
    """The cut with the largest λ alone."""

    is_trainable = False

    def weights(self, logits: Tensor) -> Tensor:
        """Return a one-hot vector; ties go to the first cut."""
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)

    def weighted(self, weight: Tensor, table: Tensor) -> Tensor:
        """Return the table where it is selected and 0 elsewhere; 0 · NaN would be NaN."""
        return torch.where(weight > 0, table, 0.0)


@dataclass(frozen=True)
class Precomputed(Mixing):
    """Weights that the layer passes in place of λ."""

    is_trainable = True

    def weights(self, logits: Tensor) -> Tensor:
        """Return the weights unchanged."""
        return logits


def check_groups(mixing: Mixing, num_features: int) -> None:
    """Check that the channel groups of the mixing weights divide the channels.

    Raises:
        SpecError: if they do not.
    """
    if num_features % mixing.groups:
        raise SpecError(
            f"The mixing weights of {mixing.groups} channel groups need a channel count divisible by {mixing.groups}; got "
            f"{num_features} channels. Usable: {format_numbers(divisors(num_features))}."
        )


def logits_shape(mixing: Mixing, num_cuts: int) -> tuple[int, ...]:
    """Return the shape of λ for a number of cuts."""
    return (num_cuts,) if mixing.groups == 1 else (mixing.groups, num_cuts)


def mix(tables: Sequence[Tensor], mixing: Mixing, weights: Tensor | None) -> Tensor:
    """Return Σ wₖ tableₖ for tables that broadcast to (n, c, t) and weights (1 or c, k); without weights, the only table."""
    if weights is None:
        return tables[0]
    terms = (mixing.weighted(weights[:, k, None], table) for k, table in enumerate(tables))
    return sum(terms, start=torch.zeros_like(tables[0]))
