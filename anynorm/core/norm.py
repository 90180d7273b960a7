"""The layer: x ─▶ moments ─▶ pooled by each cut ─▶ population ─▶ mixed ─▶ affine ─▶ y = a (x − mean) + b.

Only the kernels at the two ends touch x; everything between works on tables (n or 1, c, strips).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anynorm import kernels
from anynorm.core.admit import check_input, check_shared, read_condition
from anynorm.core.affine import Coefficients, chain, standardise
from anynorm.core.cut import ALL
from anynorm.core.keeper import Batch, pool_columns, pool_rows
from anynorm.core.mix import mix
from anynorm.core.moments import Moments, pool_samples, spread, table_dtype
from anynorm.core.state import State
from anynorm.errors import SpecError


class Norm(State):
    """Normalises (n, c, …) of any rank from 2 by the parts it is given.

    Args:
        momentum: weight of the newest batch in the running statistics; None averages all batches alike.
        population: a policy of `anynorm.core.population`, instead of `momentum`.

    >>> import anynorm
    >>> norm = anynorm.make("hn:4", 16)
    >>> norm
    HeteroNorm('hn:4', 16, eps=1e-05, momentum=0.1)
    >>> norm(torch.randn(2, 16, 8, 8)).shape
    torch.Size([2, 16, 8, 8])
    """

    def forward(self, x: Tensor, condition: Any = None) -> Tensor:
        """Normalise x.

        Args:
            condition: see `anynorm.core.condition`; ignored by norms that take none, so any spec fits any model.
        """
        check_input(self, x)
        given = read_condition(self, x, self.told if condition is None else condition)
        batch = self._observe(x, given)
        mean, var = self._mix(self._recall(batch, x, given))
        y = kernels.scale(x, mean, self._affine(var, given))
        self.keep(batch)
        return y

    def _observe(self, x: Tensor, given: Any) -> Batch:
        """Take the moments of x that this pass needs, pooled by each cut."""
        if not self.uses_batch and all([cut.pools_samples for cut in self.cuts]):
            return Batch(None, [None for _ in self.cuts])
        rows = kernels.moments(x, self._strips(x))
        columns = None
        if self.uses_batch and self.pools_samples:
            domains = self.parts.ending.domains
            columns = pool_samples(rows, given if domains else None, domains)
            columns = self.reach.unite(columns) if self.training else columns
        by_cut: list[Moments | None] = []
        for cut in self.cuts:
            if not cut.pools_samples or (cut.is_ghost and columns is not None):
                by_cut.append(pool_rows(cut, rows))
            else:
                by_cut.append(None if columns is None else pool_columns(cut, columns))
        check_shared(self, by_cut)
        return Batch(columns, by_cut)

    def _strips(self, x: Tensor) -> int:
        """Count the strips that the positions are divided into, fine enough for every cut."""
        if any([cut.space == ALL for cut in self.cuts]):
            return math.prod(x.shape[2:])
        return math.lcm(*[cut.space for cut in self.cuts])

    def _recall(self, batch: Batch, x: Tensor, given: Any) -> list[tuple[Tensor, Tensor]]:
        """Give mean and variance of each cut, from the batch or from what is kept, as tables that broadcast to (n, c, strips)."""
        found = []
        shape = (x.shape[0], x.shape[1], self._strips(x))
        for index, moments in enumerate(batch.by_cut):
            mean, var = self.read_kept(index, table_dtype(x)) if moments is None else moments[:2]
            if self.parts.ending.domains and self.cuts[index].pools_samples:
                mean, var = mean.index_select(0, given), var.index_select(0, given)
            found.append((spread(mean, shape), spread(var, shape)))
        return found

    def _mix(self, by_cut: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Weigh the cuts of the mean and those of the variance."""
        weighing, dtype = self.parts.weighing, by_cut[0][0].dtype
        mean = mix([by_cut[k][0] for k in self.mean_cuts], weighing, self.weights("mean", dtype))
        var = mix([by_cut[k][1] for k in self.var_cuts], weighing, self.weights("var", dtype))
        return mean, var

    def _affine(self, var: Tensor, given: Any) -> Coefficients:
        """Give a and b of y = a (x − mean) + b."""
        coefficients = standardise(var, self.eps)
        for stage in self.parts.ending.affine:
            gamma, beta = stage([getattr(self, name) for name in stage.names], given)
            coefficients = chain(coefficients, (gamma.to(var.dtype), beta.to(var.dtype)))
        return coefficients

    def weights(self, side: str, dtype: torch.dtype | None = None) -> Tensor | None:
        """Give the weights of the cuts of the `mean` or the `var`: (1, k), or (c, k) with groups; None for a single cut."""
        logits = getattr(self, f"{side}_weight")
        if logits is None:
            return None
        weights = self.parts.weighing.weights(logits.to(dtype or logits.dtype))
        groups = self.parts.weighing.groups
        return weights[None] if groups == 1 else weights.repeat_interleave(self.num_features // groups, dim=0)

    def merge(self) -> Norm:
        """Turn a sandwich into one affine a class, with the same output: γ'ᵢ = γᵢ γ_sa, β'ᵢ = γᵢ β_sa + βᵢ (sabn).

        >>> import anynorm
        >>> anynorm.make("sabn@10", 64).merge().spec
        'bn.cc@10'
        """
        shared, own = ("weight", "bias"), ("class_weight", "class_bias")
        if [stage.names for stage in self.parts.ending.affine] != [shared, own]:
            raise SpecError(f"{self.spec} is no sandwich of a shared and a class affine: there is nothing to merge.")
        inner, outer = ((getattr(self, gamma), getattr(self, beta)) for gamma, beta in (shared, own))
        merged = Norm(
            self.parts.merged(),
            self.num_features,
            eps=self.eps,
            population=self.population,
            track_running_stats=self.track_running_stats,
            device=outer[0].device,
            dtype=outer[0].dtype,
        )
        with torch.no_grad():
            for name in [*merged._buffers, "mean_weight", "var_weight"]:
                if getattr(merged, name) is not None:
                    getattr(merged, name).copy_(getattr(self, name))
            for name, value in zip(own, chain(inner, outer), strict=True):
                getattr(merged, name).copy_(value)
        merged.reach = self.reach
        return merged.train(self.training)
