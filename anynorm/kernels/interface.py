"""The inputs and outputs of a kernel: one forward pass as plain values.

The reference computes `normalize(spec, x, params, buffers) -> (y, batch statistics)`; the CPU kernels take a plan of the memory
layout (`plan_for(spec, x)`) as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from anynorm.core.affine import PerClass, Stage
from anynorm.core.cuts import ALL
from anynorm.core.moments import Moments
from anynorm.core.spec import NormSpec, ResolvedCuts
from anynorm.core.tracing import can_read_values
from anynorm.core.update_rules import Stats
from anynorm.errors import AnynormError

BufferPair = tuple[Tensor | None, Tensor | None]
"""The running mean and variance of a cut; None for a statistic that the norm does not use."""


class SyncGroup(Protocol):
    """The processes whose samples are pooled."""

    @property
    def is_synchronized(self) -> bool:
        """Whether moments are exchanged with other processes."""

    def all_reduce(self, moments: Moments) -> Moments:
        """Return the moments of the samples of all processes."""

    def average(self, tables: list[Tensor], weight: Tensor) -> list[Tensor]:
        """Return the weighted average of tables over all processes, without gradients."""


@dataclass(frozen=True)
class NoSync:
    """Pools the samples of this process alone."""

    is_synchronized = False

    def all_reduce(self, moments: Moments) -> Moments:
        """Return the moments unchanged."""
        return moments

    def average(self, tables: list[Tensor], weight: Tensor) -> list[Tensor]:
        """Return the tables unchanged."""
        return tables


class UnsupportedError(AnynormError):
    """Raised when a backend does not support a pass; the dispatch falls back to the reference."""


class Params(NamedTuple):
    """The tensors that receive gradients, besides x: the parameters of the layer and the style (mean, std) of the condition."""

    weight: Tensor | None = None
    bias: Tensor | None = None
    class_weight: Tensor | None = None
    class_bias: Tensor | None = None
    mean_weight: Tensor | None = None
    var_weight: Tensor | None = None
    style_mean: Tensor | None = None
    style_std: Tensor | None = None

    def of(self, stage: Stage) -> list[Any]:
        """Return the parameters of an affine stage."""
        return [getattr(self, name) for name in stage.names]


NUM_LAYER_PARAMS = 6
"""The number of leading `Params` that the layer holds; the others come with the condition."""


class Buffers(NamedTuple):
    """The tensors that are only read.

    Args:
        running_stats: per cut the running mean and variance to normalize by; None if the cut uses the batch.
        labels: the class or domain of each sample.
    """

    running_stats: tuple[BufferPair | None, ...]
    labels: Tensor | None


@dataclass(frozen=True, eq=False)
class ForwardSpec:
    """What a forward pass does, apart from its tensors. Layers reuse it, so checks and plans are cached in it.

    Args:
        norm_spec: the definition of the norm.
        cuts: its cuts for this number of channels.
        num_features: the number of channels.
        eps: added to the variance.
        uses_batch: per cut whether statistics come from the batch (True) or from running statistics.
        sync_group: the processes whose samples are pooled.
        validated_shapes: shapes and dtypes of x that were checked already.
        plans: memory layouts of the CPU kernels by shape, strides and dtype of x.

    Attributes:
        num_domains: the number of domains with statistics of their own; 0 if all samples share them.
    """

    norm_spec: NormSpec
    cuts: ResolvedCuts
    num_features: int
    eps: float
    uses_batch: tuple[bool, ...]
    sync_group: SyncGroup
    validated_shapes: set[Any] = field(default_factory=set, repr=False)
    plans: dict[Any, Any] = field(default_factory=dict, repr=False)
    num_domains: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_domains", self.norm_spec.affine.num_domains)

    @property
    def has_class_affine(self) -> bool:
        """Whether each class has its own affine."""
        return any(isinstance(stage, PerClass) for stage in self.norm_spec.affine.stages)

    def stats_shape(self, index: int) -> tuple[int, int, int]:
        """Return the shape of a cut's running statistics: (domains or 1, channel parts, space parts)."""
        _, channels, strips = self.cuts.distinct[index].parts((1, self.num_features, 1))
        return self.num_domains or 1, channels, strips

    def num_strips(self, x: Tensor) -> int:
        """Return the number of strips into which positions are divided, fine enough for every cut."""
        spaces = [cut.space for cut in self.cuts.distinct]
        return math.prod(x.shape[2:]) if ALL in spaces else math.lcm(*spaces)


class BatchStats(NamedTuple):
    """The statistics of x that a forward pass computed.

    Args:
        by_cut: the moments of each cut's parts; None for a cut that used running statistics.
        channel_moments: the moments per channel and strip over all samples of each domain; None if no cut pooled samples.
        num_values: the number of positions behind `channel_moments`, (domains or 1, 1, 1).
    """

    by_cut: list[Moments | None]
    channel_moments: Moments | None = None
    num_values: Tensor | None = None

    @property
    def pooled_samples(self) -> bool:
        """Whether a cut pooled samples of the batch, so that running statistics can be updated."""
        return self.num_values is not None

    def has_single_value(self, index: int) -> bool:
        """Whether a cut took a statistic over a single value; False if that cannot be read without synchronization."""
        moments = self.by_cut[index]
        return moments is not None and can_read_values(moments.count) and bool((moments.count == 1).any())

    def stats(self, index: int) -> Stats:
        """Return the means and unbiased variances of a cut, (sample parts, channel parts, space parts)."""
        moments = self.by_cut[index]
        assert moments is not None  # called only for cuts that used the batch
        return Stats(moments.mean, moments.unbiased_var())

    def update_in_place(self, stats: Sequence[tuple[int, BufferPair]], num_batches: Tensor | None, rate: float) -> bool:
        """Update running statistics in a compiled kernel, s ← (1 − rate) s + rate m; return False if there is none."""
        return False
