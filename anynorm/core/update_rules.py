"""Update rules of running statistics.

Training normalizes by the statistics m_t of batch t, inference by running statistics s:

    Running            s ← (1 − rate) s + rate m_t                       torch's `momentum` is the rate
    Cumulative         s ← mean of all m_t so far                        torch's `momentum=None`
    CumulativeBiased   s ← mean of all m_t so far, biased variances      sn sec. 2.1: "batch average"
    Pooled             s ← moments of all values of all batches so far   exact for batches of different sizes
    Frozen             s unchanged, and used in training too

The running variance is unbiased, as in torch, except with `CumulativeBiased`: sn averages the variances of its eq. 2, which
divide by the number of values. That of a norm whose mean is 0 is the average of second moments, which are unbiased as they are
(`Observation.correction`). Rules are stateless: the buffers belong to the layer, so its rule can be
replaced at any time. `updates` is False for Frozen; `is_exact` is True for the rule that needs the number of values so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from anynorm.core.moments import MIN_COUNT, Moments, bessel_correction, pool_stacked
from anynorm.errors import SpecError


class Stats(NamedTuple):
    """Means and unbiased variances of one cut: tables (domains or sample parts, channel parts, space parts)."""

    mean: Tensor
    unbiased_var: Tensor


class Observation(NamedTuple):
    """The statistics of one batch for one cut, per domain.

    Args:
        average: means and unbiased variances, averaged over the sample parts of the cut (one part, except for GBGN); one row
            per batch for several batches in sequence.
        moments: moments over all values of the batch.
        num_batches: number of batches so far, including this one.
        num_values: number of values per channel so far, including this batch.
        new_values: number of values per channel in this batch.
        num_parts: number of sample parts over which `average` is an average.
        correction: Bessel's correction of the variances: 0 if the mean is 0 instead of an estimate, otherwise 1.
    """

    average: Stats
    moments: Moments
    num_batches: Tensor
    num_values: Tensor
    new_values: Tensor
    num_parts: int | Tensor = 1
    correction: int = 1


def as_tables(buffers: tuple[Tensor | None, Tensor | None], shape: tuple[int, int, int], dtype: torch.dtype) -> Stats:
    """Copy the running mean and variance of a cut into tables; a missing buffer is read as zeros."""
    existing = next(buffer for buffer in buffers if buffer is not None)
    mean, var = (torch.zeros_like(existing) if buffer is None else buffer for buffer in buffers)
    return Stats(mean.to(dtype, copy=True).reshape(shape), var.to(dtype, copy=True).reshape(shape))


class Interpolation:
    """Base class of rules s ← (1 − rate) s + rate m_t, where the rate may depend on the number of batches t."""

    updates = True
    is_exact = False

    def rate_at(self, num_batches: Tensor) -> Tensor | float:
        """Return the weight of the newest of `num_batches` batches."""
        raise NotImplementedError

    def new_stats(self, batch: Observation) -> Stats:
        """Return the statistics of a batch that are averaged."""
        return batch.average

    def update(self, stats: Stats, batch: Observation) -> Stats:
        """Return the running statistics updated by one batch."""
        rate = self.rate_at(batch.num_batches)
        return Stats(*((1 - rate) * old + rate * new for old, new in zip(stats, self.new_stats(batch), strict=True)))

    def update_in_sequence(self, stats: Stats, batches: Observation, present: Tensor) -> Stats:
        """Return the running statistics updated by several batches, one after the other.

            s ← Π_i (1 − rate_i) s + Σ_i rate_i Π_(j > i) (1 − rate_j) m_i

        Args:
            stats: the running statistics.
            batches: the batches in order, one per row of `average`; `num_batches` has one number per row.
            present: whether each batch counts, (batches, 1, 1); the others change nothing.
        """
        rate, zeros = self.rate_at(batches.num_batches), torch.zeros_like(batches.average.mean[:, :1, :1])
        kept = torch.where(present, 1 - rate, torch.ones_like(zeros)).flip(0).cumprod(0).flip(0)  # by each and all later batches
        weights = torch.where(present, rate * torch.cat([kept[1:], torch.ones_like(kept[:1])]), zeros)
        sums = [
            (weights * torch.where(present, new, zeros)).sum(0, keepdim=True)  # a skipped statistic may be NaN
            for new in self.new_stats(batches)
        ]
        return Stats(*(kept[:1] * old + new for old, new in zip(stats, sums, strict=True)))


@dataclass(frozen=True)
class Running(Interpolation):
    """An exponential moving average.

    The kernels that compute the statistics also update them, with the same formula: C++ in `csrc/running_stats.h`
    (`interpolate`), Triton in `kernels/gpu_kernels.py` (`_update`).

    Args:
        rate: the weight of the newest batch, torch's `momentum`.
    """

    rate: float = 0.1

    def __post_init__(self) -> None:
        if isinstance(self.rate, bool) or not isinstance(self.rate, int | float) or not 0 <= self.rate <= 1:
            raise SpecError(
                f"momentum must be in [0, 1] or None; got {self.rate!r}. It is the weight of the newest batch, as in torch."
            )

    def rate_at(self, num_batches: Tensor) -> float:
        """Return the rate, the same for all batches."""
        return self.rate


@dataclass(frozen=True)
class ExtrapolatedRunning(Running):
    """The moving average of a layer of torch whose `momentum` is outside of [0, 1], which torch does not refuse."""

    def __post_init__(self) -> None:
        """Accept any rate."""


def from_torch(momentum: float | None) -> UpdateRule:
    """Return the update rule of a layer of torch with a given `momentum`, in or outside of [0, 1]."""
    return from_momentum(momentum) if momentum is None or 0 <= momentum <= 1 else ExtrapolatedRunning(momentum)


class _EqualWeights(Interpolation):
    def rate_at(self, num_batches: Tensor) -> Tensor:
        """Return 1 / number of batches."""
        return 1 / num_batches.clamp(min=1)


@dataclass(frozen=True)
class Cumulative(_EqualWeights):
    """The average of the statistics of all batches, with equal weights."""


@dataclass(frozen=True)
class CumulativeBiased(_EqualWeights):
    """The average of the means and biased variances of all batches, with equal weights (sn sec. 2.1, eq. 2).

    With n values per statistic, variances are smaller by the factor (n − 1) / n than those of `Cumulative`.
    """

    def new_stats(self, batch: Observation) -> Stats:
        """Return the means and the biased variances of a batch."""
        biased_var = batch.average.unbiased_var / bessel_correction(batch.moments.count / batch.num_parts, batch.correction)
        return Stats(batch.average.mean, biased_var)


@dataclass(frozen=True)
class Pooled:
    """The moments over all values of all batches, exact for batches of different sizes."""

    updates = True
    is_exact = True

    def update(self, stats: Stats, batch: Observation) -> Stats:
        """Return the running statistics updated by one batch."""
        new = batch.moments
        old_count = new.count * (batch.num_values - batch.new_values) / batch.new_values.clamp(min=MIN_COUNT)
        old_var = stats.unbiased_var / bessel_correction(old_count, batch.correction)
        pairs = zip((stats.mean, old_var, old_count), new, strict=True)
        merged = pool_stacked(Moments(*(torch.stack(pair) for pair in pairs)))
        return Stats(merged.mean, merged.unbiased_var(batch.correction))


@dataclass(frozen=True)
class Frozen:
    """Fixed running statistics, used in training and in inference."""

    updates = False
    is_exact = False

    def update(self, stats: Stats, batch: Observation) -> Stats:
        """Return the running statistics unchanged."""
        return stats


UpdateRule = Running | Cumulative | CumulativeBiased | Pooled | Frozen


def from_momentum(momentum: float | None) -> UpdateRule:
    """Return the update rule that corresponds to torch's `momentum`.

    Raises:
        SpecError: if `momentum` is neither None nor a number in [0, 1].
    """
    return Cumulative() if momentum is None else Running(momentum)
