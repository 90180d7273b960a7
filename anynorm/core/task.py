"""One pass as a value: what is to be done with x, apart from the tensors that gradients belong to.

A backend computes `normalise(task, x, owned)`: nothing but this value, x and the owned tensors reaches it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from anynorm.core.affine import Stage
from anynorm.core.cut import ALL
from anynorm.core.moments import Moments
from anynorm.core.parts import Fitted, Parts
from anynorm.core.population import Kept
from anynorm.core.sync import Reach


class Owned(NamedTuple):
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


class Batch(NamedTuple):
    """What a pass took from x.

    `by_cut` are the moments of each cut's parts; None: the population served. `columns` are those of each channel and strip over
    all samples of each domain, and `values` counts the positions behind them; None: no cut that pools over samples looked.
    """

    by_cut: list[Moments | None]
    columns: Moments | None = None
    values: Tensor | None = None

    def average(self, index: int) -> Kept:
        """Give what is to be kept of a cut whose samples are one part: its means and unbiased variances."""
        moments = self.by_cut[index]
        assert moments is not None  # only asked of cuts that looked
        return Kept(moments.mean, moments.unbiased_var())


@dataclass(frozen=True, eq=False)
class Task:
    """What one pass does.

    Args:
        kept: for each cut the population that serves; None where the batch is looked at.
        labels: the class or domain of each sample.
        reach: whose samples are pooled.
    """

    parts: Parts
    fitted: Fitted
    channels: int
    eps: float
    kept: list[Kept | None]
    labels: Tensor | None
    reach: Reach

    @property
    def domains(self) -> int:
        """How many domains have statistics of their own; 0 where all samples share them."""
        return self.parts.ending.domains

    def strips(self, x: Tensor) -> int:
        """Count the strips that the positions are divided into, fine enough for every cut."""
        spaces = [cut.space for cut in self.fitted.cuts]
        return math.prod(x.shape[2:]) if ALL in spaces else math.lcm(*spaces)
