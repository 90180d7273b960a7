"""The interface of the kernels: the inputs and outputs of a forward pass.

Every backend implements `normalize(spec, x, params, buffers) -> (y, batch statistics)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anynorm.core.activation import Activation, activation_at
from anynorm.core.affine import PerChannel, PerChannelScale, PerClass, Stage, Style
from anynorm.core.compat import can_read_values
from anynorm.core.cuts import ALL, Cut
from anynorm.core.mixing import Argmax, Precomputed, Softmax
from anynorm.core.moments import Moments
from anynorm.core.spec import AffineSpec, NormSpec, ResolvedCuts
from anynorm.core.update_rules import Stats
from anynorm.errors import AnynormError
from anynorm.kernels.ragged import Mask, Ragged
from anynorm.kernels.sync import SyncGroup, sync_group_named

BufferPair = tuple[Tensor | None, Tensor | None]
"""The buffers of the running mean and variance of a cut; None for a statistic without a buffer."""


class UnsupportedError(AnynormError):
    """Raised when a backend does not support a forward pass; `kernels.normalize` then uses the reference."""


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_channels_last(x: Tensor) -> bool:
    """Whether x is channels_last and not also contiguous."""
    return not x.is_contiguous() and x.dim() in _CHANNELS_LAST and x.is_contiguous(memory_format=_CHANNELS_LAST[x.dim()])


class Params(NamedTuple):
    """The inputs besides x that receive gradients: the parameters of the layer, the mean and std of a style, and the residual."""

    weight: Tensor | None = None
    bias: Tensor | None = None
    class_weight: Tensor | None = None
    class_bias: Tensor | None = None
    mean_weight: Tensor | None = None
    var_weight: Tensor | None = None
    style_mean: Tensor | None = None
    style_std: Tensor | None = None
    residual: Tensor | None = None

    def of(self, stage: Stage) -> list[Any]:
        """Return the parameters of an affine stage."""
        return [getattr(self, name) for name in stage.names]


MIXINGS = (Softmax, Argmax, Precomputed)
"""The mixing rules, in the order of their indices in `ForwardSpec.encoded`."""
NUM_LAYER_PARAMS = 6
"""Number of leading fields of `Params` that are parameters of the layer; the other fields come with each input."""


class Buffers(NamedTuple):
    """The inputs that receive no gradients.

    Args:
        running_stats: running mean and variance of each cut; read if the cut does not use batch statistics.
        labels: class or domain of each sample, (n,).
        num_batches: the buffer `num_batches_tracked`.
        momentum: rate of the update s ← (1 − momentum) s + momentum m of the running statistics, which also increments
            `num_batches`; None for no update. If a backend does not implement it, the layer does it (`BatchStats.is_updated`).
        num_skipped: the buffer `num_batches_skipped`, incremented instead of an update if the new statistics are not finite.
        ragged: the valid positions of each sample; None if all positions are valid. Labels and styles are those of its samples.
    """

    running_stats: tuple[BufferPair | None, ...]
    labels: Tensor | None
    num_batches: Tensor | None = None
    momentum: float | None = None
    num_skipped: Tensor | None = None
    ragged: Ragged | None = None


@dataclass(eq=False)
class ForwardSpec:
    """The description of a forward pass, without its tensors. Layers reuse it and do not change its arguments.

    Args:
        norm_spec: the definition of the norm.
        cuts: the cuts of the norm for this number of channels.
        num_features: number of channels.
        eps: value added to the variance.
        uses_batch: for each cut, whether it uses batch statistics (True) or running statistics (False).
        sync_group: the processes over which statistics are synchronized.
        activation: the activation that is applied to the output; None without one.

    Attributes:
        validated_shapes: shapes and dtypes of x that a layer has already checked for this pass.
        num_domains: number of domains with separate statistics; 0 if all samples share the same statistics.
        takes_style: whether the condition is a style.
        takes_condition: whether the pass requires a class, domain or style.
        has_variable_counts: whether the number of values per statistic depends on domains or on other processes.
        num_units: minimum number of equal parts of the channels from which all cuts that use the batch can be pooled.
        pools_batch: whether a cut pools samples of the batch.
        has_positional_cut: whether a cut has one statistic per position.
        has_ghost_cut: whether a cut divides the batch into parts of several samples.
        updates_in_sequence: whether running statistics are updated by one micro-batch after the other (`Cut.is_micro_batch`).
        has_crossing_cut: whether parts of a cut may contain fractions of several channels (`Cut.crosses_channels`).
        has_zero_cut: whether the moments of a cut are about zero (`Cut.about_zero`).
        definition: the same description in the C++ kernels, made at first use.
    """

    norm_spec: NormSpec
    cuts: ResolvedCuts
    num_features: int
    eps: float
    uses_batch: tuple[bool, ...]
    sync_group: SyncGroup
    activation: Activation | None = None
    validated_shapes: set[Any] = field(init=False, repr=False, default_factory=set)
    definition: Any = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        """Compute the attributes that passes read; torch.compile cannot trace `cached_property` in all versions of Python."""
        cuts = self.cuts.distinct
        used = [cut for cut, use in zip(cuts, self.uses_batch, strict=True) if use]
        units = [self.num_features if cut.crosses_channels else cut.channels or self.num_features for cut in used]
        self.num_domains = self.norm_spec.affine.num_domains
        self.takes_style = self.norm_spec.takes_style
        self.takes_condition = bool(self.norm_spec.num_classes) or self.takes_style
        self.has_variable_counts = bool(self.num_domains) or self.sync_group.is_synchronized
        self.num_units = math.lcm(*units)
        self.pools_batch = any([cut.pools_samples for cut in used])
        self.has_positional_cut = any([cut.space == ALL for cut in cuts])
        self.has_ghost_cut = any([cut.is_ghost for cut in cuts])
        self.updates_in_sequence = any([cut.is_micro_batch for cut in used])
        self.has_crossing_cut = any([cut.crosses_channels for cut in cuts])
        self.has_zero_cut = any([cut.about_zero for cut in cuts])

    def stats_shape(self, index: int) -> tuple[int, int, int]:
        """Return the shape of the running statistics of the cut `index`: (domains or 1, channel parts, space parts)."""
        _, channels, strips = self.cuts.distinct[index].parts((1, self.num_features, 1))
        return self.num_domains or 1, channels, strips

    def in_micro_batches(self, size: int) -> ForwardSpec:
        """Return this pass with separate statistics for each micro-batch of `size` samples."""
        used = zip(self.cuts.distinct, self.uses_batch, strict=True)
        cuts = tuple([cut.in_micro_batches(size) if use else cut for cut, use in used])
        return replace(self, cuts=self.cuts._replace(distinct=cuts))

    @cached_property
    def encoded(self) -> list[int]:
        """The value of `encode`."""
        return self.encode()

    def encode(self) -> list[int]:
        """Return the pass as integers for C++: cuts, sides, mixing, groups, domains, classes, style, activation, and so on."""
        numbers = [len(self.cuts.distinct)]
        for cut, uses_batch in zip(self.cuts.distinct, self.uses_batch, strict=True):
            numbers += [cut.channels, cut.space, cut.samples_per_part if cut.samples == ALL else 0, int(uses_batch)]
        for side in (self.cuts.mean, self.cuts.var):
            numbers += [len(side), *side]
        norm, strips = self.norm_spec, math.lcm(*[cut.space or 1 for cut in self.cuts.distinct])
        numbers += [MIXINGS.index(type(norm.mixing)), norm.mixing.groups, self.num_domains, norm.num_classes]
        activation = 0 if self.activation is None else self.activation.index
        return [*numbers, int(norm.takes_style), int(self.updates_in_sequence), activation, strips]

    @property
    def slope(self) -> float:
        """The slope of leaky_relu for negative inputs; 0 for other activations."""
        return self.activation.negative_slope if self.activation is not None and self.activation.name == "leaky_relu" else 0.0

    @classmethod
    def decode(
        cls, numbers: list[int], params: Params, num_features: int, *, eps: float, slope: float, group: str
    ) -> ForwardSpec:
        """Decode the integers of `encoded`.

        Args:
            numbers: the integers.
            params: the parameters, which determine the affine stages.
            num_features: number of channels.
            eps: value added to the variance.
            slope: the slope of leaky_relu.
            group: name of the process group over which statistics are synchronized; empty without synchronization.
        """
        rest = iter(numbers)
        cuts, uses_batch = [], []
        for _ in range(next(rest)):
            channels, space, samples_per_part, uses = (next(rest) for _ in range(4))
            cuts.append(Cut(ALL if samples_per_part else 1, channels, space, max(samples_per_part, 1)))
            uses_batch.append(bool(uses))
        mean, var = (tuple([next(rest) for _ in range(next(rest))]) for _ in range(2))
        mixing, groups, domains, classes, style, _, activation, _ = rest
        stages: list[Stage] = [] if params.weight is None else [PerChannelScale() if params.bias is None else PerChannel()]
        stages += [PerClass(classes)] if params.class_weight is not None else []
        stages += [Style()] if style else []
        affine = AffineSpec(tuple(stages), domains)
        norm = NormSpec(tuple(cuts[k] for k in mean), tuple(cuts[k] for k in var), MIXINGS[mixing](groups), affine)
        resolved, sync_group = ResolvedCuts(tuple(cuts), mean, var), sync_group_named(group)
        return cls(norm, resolved, num_features, eps, tuple(uses_batch), sync_group, activation_at(activation, slope))

    @cached_property
    def by_position(self) -> ForwardSpec | None:
        """The value of `vector_spec`."""
        return self.vector_spec()

    def vector_spec(self) -> ForwardSpec | None:
        """Return the pass for x reshaped to (n · positions, c); None if a cut pools samples or positions, or with a condition."""
        cuts = self.cuts.distinct
        if self.norm_spec.num_classes or self.norm_spec.takes_style or any(cut.space != ALL or cut.pools_samples for cut in cuts):
            return None
        vectors = ResolvedCuts(tuple(replace(cut, space=1) for cut in cuts), self.cuts.mean, self.cuts.var)
        return replace(self, cuts=vectors)

    def depends_on_samples(self, ragged: Ragged) -> bool:
        """Whether statistics or coefficients depend on which positions are valid, or on which sample has a point."""
        if self.has_positional_cut:
            vectors = self.vector_spec() if torch.compiler.is_compiling() else self.by_position
            if vectors is not None:
                return False  # all statistics are those of one position
        by_sample = any([use and cut.samples == ALL for cut, use in zip(self.cuts.distinct, self.uses_batch, strict=True)])
        return isinstance(ragged, Mask) or by_sample or self.takes_condition

    @cached_property
    def without_activation(self) -> ForwardSpec:
        """The same pass without the activation."""
        return replace(self, activation=None)

    def num_strips(self, x: Tensor) -> int:
        """Return the number of strips of the positions from which the space parts of all cuts can be pooled."""
        spaces = [cut.space for cut in self.cuts.distinct]
        return math.prod(x.shape[2:]) if ALL in spaces else math.lcm(*spaces)


class BatchStats(NamedTuple):
    """The batch statistics of a forward pass.

    Args:
        by_cut: moments of the parts of each cut; None for a cut whose statistics the layer does not need.
        channel_moments: moments per channel and strip over all samples of each domain; None if they were not computed.
        num_values: number of values per channel, (domains or 1, 1, 1); None if no cut pooled samples.
        is_updated: whether the running statistics have been updated.
    """

    by_cut: list[Moments | None]
    channel_moments: Moments | None = None
    num_values: Tensor | None = None
    is_updated: bool = False

    @property
    def pooled_samples(self) -> bool:
        """Whether a cut pooled samples of the batch, so that running statistics can be updated."""
        return self.num_values is not None

    def has_single_value(self, index: int) -> bool:
        """Whether the cut `index` computed a statistic over a single value; False if the counts cannot be read."""
        moments = self.by_cut[index]
        return moments is not None and can_read_values(moments.count) and bool((moments.count == 1).any())

    def stats(self, index: int, correction: int) -> Stats:
        """Return the means and unbiased variances of the cut `index`, (sample parts, channel parts, space parts)."""
        moments = self.by_cut[index]
        assert moments is not None  # called only for cuts that used the batch
        return Stats(moments.mean, moments.unbiased_var(correction))


def read_batch_stats(spec: ForwardSpec, x: Tensor, stats: Tensor, counts: Tensor, num_rows: list[int]) -> BatchStats:
    """Return the moments of the cuts that pooled samples of the batch, from the tables of the C++ or Triton kernels.

    Args:
        spec: the description of the forward pass.
        x: the input.
        stats: the means and variances of all cuts, one after the other, (2, statistics).
        counts: number of values of each domain per channel and strip, (domains or 1,).
        num_rows: number of sample parts or domains in the table of each cut.
    """
    n, c, positions = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    by_cut: list[Moments | None] = []
    num_values, offset = None, 0
    for cut, uses_batch, rows in zip(spec.cuts.distinct, spec.uses_batch, num_rows, strict=True):
        _, channels, strips = cut.parts((n, c, 1))
        size = rows * channels * strips
        if uses_batch and cut.pools_samples:
            mean, var = stats[:, offset : offset + size].reshape(2, rows, channels, strips)
            num_values = counts.new_full((1,), n * positions) if cut.is_ghost else counts * spec.num_strips(x)
            per_part = num_values.reshape(-1, 1, 1) * (c / (channels * strips) / (rows if cut.is_ghost else 1))
            by_cut.append(Moments(mean, var, per_part.expand_as(mean)))
        else:
            by_cut.append(None)
        offset += size
    return BatchStats(by_cut, None, None if num_values is None else num_values.reshape(-1, 1, 1))
