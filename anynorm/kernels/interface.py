"""One pass as values: what is to be done with x, the tensors that gradients belong to, and those that are only read.

A backend computes `normalise(task, x, owned, given)`: nothing else reaches it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from anynorm.core.affine import PerClass, Stage
from anynorm.core.cuts import ALL
from anynorm.core.moments import Moments
from anynorm.core.spec import NormSpec, ResolvedCuts
from anynorm.core.update_rules import Stats
from anynorm.layers.conditioning import is_readable
from anynorm.layers.distributed import SyncGroup


class Params(NamedTuple):
    """The tensors that gradients belong to, beside x: a layer's parameters, and the style (mean, std) it was given."""

    weight: Tensor | None = None
    bias: Tensor | None = None
    class_weight: Tensor | None = None
    class_bias: Tensor | None = None
    mean_weight: Tensor | None = None
    var_weight: Tensor | None = None
    style_mean: Tensor | None = None
    style_std: Tensor | None = None

    def of(self, stage: Stage) -> list[Any]:
        """Give the parameters of an affine stage."""
        return [getattr(self, name) for name in stage.names]


class Buffers(NamedTuple):
    """The tensors that a pass reads, and that no gradient belongs to.

    `kept` is for each cut the population that serves, as the layer keeps it; None where the batch is looked at. `labels` are the
    class or domain of each sample.
    """

    kept: tuple[tuple[Tensor | None, Tensor | None] | None, ...]
    labels: Tensor | None


class BatchStats(NamedTuple):
    """What a pass took from x.

    `by_cut` are the moments of each cut's parts; None: the population served. `columns` are those of each channel and strip over
    all samples of each domain, and `values` counts the positions behind them; None: no cut that pools over samples looked.
    """

    by_cut: list[Moments | None]
    columns: Moments | None = None
    values: Tensor | None = None

    @property
    def looked(self) -> bool:
        """Whether a cut that pools over samples looked."""
        return self.values is not None

    @property
    def present(self) -> Tensor | int | None:
        """Say which domains have samples, 1 or 0; 1 where there are no domains. None: that cannot be told without a stop."""
        values = self.values
        if values is None or values.numel() > 1 or not is_readable(values) or not float(values.detach()):
            return None
        return 1

    def is_single(self, index: int) -> bool:
        """Whether a cut took a statistic from one value, as far as that can be told without a stop."""
        moments = self.by_cut[index]
        return moments is not None and is_readable(moments.count) and bool((moments.count == 1).any())

    def blend(self, index: int, buffers: tuple[Tensor | None, Tensor | None], rate: float) -> bool:
        """Blend a cut's averages into buffers in one go, where a backend knows how; say whether it was done."""
        return False

    def average(self, index: int) -> Stats:
        """Give what is to be kept of a cut whose samples are one part: its means and unbiased variances."""
        moments = self.by_cut[index]
        assert moments is not None  # only asked of cuts that looked
        return Stats(moments.mean, moments.unbiased_var())


@dataclass(frozen=True, eq=False)
class ForwardSpec:
    """What a pass does: the same from pass to pass, so that inputs once admitted and plans once made are kept with it.

    Args:
        looks: for each cut whether it looks at the batch, or is served by a population.
        reach: whose samples are pooled.
    """

    norm_spec: NormSpec
    fitted: ResolvedCuts
    channels: int
    eps: float
    uses_batch: tuple[bool, ...]
    sync_group: SyncGroup
    admitted: set[Any] = field(default_factory=set, repr=False)
    plans: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def domains(self) -> int:
        """How many domains have statistics of their own; 0 where all samples share them."""
        return self.norm_spec.affine.num_domains

    @property
    def has_class_affine(self) -> bool:
        """Whether each class has an affine of its own."""
        return any(isinstance(stage, PerClass) for stage in self.norm_spec.affine.stages)

    def kept_shape(self, index: int) -> tuple[int, int, int]:
        """Give the shape of what is kept of a cut: (domains or 1, c parts, t parts)."""
        _, channels, strips = self.fitted.cuts[index].parts((1, self.channels, 1))
        return self.domains or 1, channels, strips

    def strips(self, x: Tensor) -> int:
        """Count the strips that the positions are divided into, fine enough for every cut."""
        spaces = [cut.space for cut in self.fitted.cuts]
        return math.prod(x.shape[2:]) if ALL in spaces else math.lcm(*spaces)
