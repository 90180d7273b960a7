"""How the statistics of several cuts become one: Σ wₖ sₖ, the weights learned.

    Soft   w = softmax(λ)               (sn eq. 5; λ starts at 1, so equal weights)
    Hard   w = one-hot(argmax λ)        (sn sec. 2.1: "sparse SN", one cut a layer)
    Ready  w as the layer works it out

Mean and variance have a λ each. With `groups` > 1 each contiguous group of channels has its own ("group SN").
Variances are mixed, not standard deviations, and ε is added afterwards.
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
    """Weighs cuts, for all channels alike or for each of some groups of them."""

    groups: int = 1
    learns: ClassVar[bool]

    @abstractmethod
    def weights(self, logits: Tensor) -> Tensor:
        """Turn λ (…, k) into weights."""

    def weigh(self, weight: Tensor, table: Tensor) -> Tensor:
        """Take a share of a table."""
        return weight * table

    def spread(self, logits: Tensor, channels: int) -> Tensor:
        """Turn λ into weights (1, k), or (channels, k) where groups of channels weigh on their own."""
        weights = self.weights(logits)
        return weights[None] if self.groups == 1 else weights.repeat_interleave(channels // self.groups, dim=0)


@dataclass(frozen=True)
class Softmax(Mixing):
    """Weighs cuts by a softmax."""

    learns = True

    def weights(self, logits: Tensor) -> Tensor:
        """Turn λ (…, k) into weights that sum to 1."""
        return logits.softmax(-1)


@dataclass(frozen=True)
class Argmax(Mixing):
    """Takes the cut of the largest λ alone."""

    learns = False

    def weights(self, logits: Tensor) -> Tensor:
        """Turn λ (…, k) into a one-hot; ties go to the first cut."""
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)

    def weigh(self, weight: Tensor, table: Tensor) -> Tensor:
        """Take a table or nothing of it: 0 · NaN is NaN, and what is not chosen must not show."""
        return torch.where(weight > 0, table, 0.0)


@dataclass(frozen=True)
class Precomputed(Mixing):
    """Takes the weights that a layer gives in place of λ."""

    learns = True

    def weights(self, logits: Tensor) -> Tensor:
        """Leave weights as they are."""
        return logits


def check_groups(mixing: Mixing, num_features: int) -> None:
    """Refuse groups that do not divide the channels."""
    if num_features % mixing.groups:
        raise SpecError(
            f"{mixing.groups} channel groups cannot each have weights of their own: {num_features} channels are not "
            f"divisible by {mixing.groups}. Usable: {format_numbers(divisors(num_features))}."
        )


def logits_shape(mixing: Mixing, cuts: int) -> tuple[int, ...]:
    """Shape of λ for a number of cuts."""
    return (cuts,) if mixing.groups == 1 else (mixing.groups, cuts)


def mix(tables: Sequence[Tensor], mixing: Mixing, weights: Tensor | None) -> Tensor:
    """Weigh tables that broadcast to (n, c, t) by weights (1 or c, k); a single table, which has none, passes as it is."""
    if weights is None:
        return tables[0]
    shares = (mixing.weigh(weights[:, k, None], table) for k, table in enumerate(tables))
    return sum(shares, start=torch.zeros_like(tables[0]))
