"""The layer: x ─▶ moments ─▶ pooled by each cut ─▶ population ─▶ mixed ─▶ affine ─▶ y = a (x − mean) + b.

Only the kernels at the two ends touch x; everything between works on tables (n or 1, c, strips).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anynorm import kernels
from anynorm.core.admit import check_input, check_shared, read_condition
from anynorm.core.affine import Coefficients, chain, standardise
from anynorm.core.cut import ALL, Cut
from anynorm.core.mix import mix
from anynorm.core.moments import Moments, pool, pool_samples, spread, table_dtype
from anynorm.core.population import Kept, Observed
from anynorm.core.state import State, is_recomputing
from anynorm.errors import SpecError


class Batch(NamedTuple):
    """What a forward pass takes from x.

    `columns` are the moments over all samples, of each domain; `by_cut` those of each cut. None: the population serves.
    """

    columns: Moments | None
    by_cut: list[Moments | None]


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
        a, b = self._affine(var, given)
        y = kernels.scale(x, mean, a, b)
        self._keep(batch)
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
            if cut.pools_samples and columns is None:
                by_cut.append(None)
            elif cut.pools_samples and not cut.is_ghost:
                by_cut.append(_pool_columns(cut, columns))
            else:
                by_cut.append(_pool_rows(cut, rows))
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
            tables = self._read_kept(index, table_dtype(x)) if moments is None else moments[:2]
            if self.parts.ending.domains and self.cuts[index].pools_samples:
                tables = tuple(table.index_select(0, given) for table in tables)
            mean, var = (spread(table, shape) for table in tables)
            found.append((mean, var))
        return found

    def _mix(self, by_cut: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Weigh the cuts of the mean and those of the variance."""
        mean = mix([by_cut[k][0] for k in self.mean_cuts], self.weights("mean", by_cut[0][0].dtype))
        var = mix([by_cut[k][1] for k in self.var_cuts], self.weights("var", by_cut[0][1].dtype))
        return mean, var

    def _affine(self, var: Tensor, given: Any) -> Coefficients:
        """Give a and b of y = a (x − mean) + b."""
        coefficients = standardise(var, self.eps)
        for stage in self.parts.ending.affine:
            gamma, beta = stage([getattr(self, name) for name in stage.names], given)
            coefficients = chain(coefficients, (gamma.to(var.dtype), beta.to(var.dtype)))
        return coefficients

    @torch.no_grad()
    def _keep(self, batch: Batch) -> None:
        """Move what is kept by one batch; last of all, so that a failed pass leaves it as it was."""
        columns = batch.columns
        if columns is None or not self.learns_population or is_recomputing():
            return
        new_values = columns.count.expand_as(columns.mean)[:, :1].sum((1, 2))
        present = new_values > 0
        tallies = {"num_batches_tracked": present, "num_values_tracked": new_values}
        moved = {name: self._tally(name) + new.reshape(self._tally(name).shape).long() for name, new in tallies.items() if name in self._buffers}
        seen = [moved.get(name, new).reshape(-1, 1, 1) for name, new in tallies.items()]
        for index, names in self._kept.items():
            kept = self._read_kept(index, columns.mean.dtype)
            observed = Observed(self._average(index, batch), _pool_columns(self.cuts[index], columns), *seen, new_values.reshape(-1, 1, 1))
            for name, old, new in zip(names, kept, self.population.step(kept, observed), strict=True):
                if name:
                    moved[name] = torch.where(present.reshape(-1, 1, 1), new, old)
        for name, new in moved.items():
            buffer = self._buffers[name]
            buffer.copy_(new.reshape(buffer.shape))

    def _average(self, index: int, batch: Batch) -> Kept:
        """Average what a cut's sample parts show, over processes too; but for GBGN there is one part."""
        moments = batch.by_cut[index]
        average = Kept(moments.mean, moments.unbiased_var())
        if not self.cuts[index].is_ghost:
            return average
        parts = moments.mean.shape[0]
        local = [table.sum(0, keepdim=True) / max(parts, 1) for table in average]
        return Kept(*self.reach.average(local, local[0].new_full((1, 1, 1), parts)))

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
        shared, own = self.weight, getattr(self, "class_weight", None)
        if shared is None or own is None:
            raise SpecError(f"{self.spec} is no sandwich of a shared and a class affine: there is nothing to merge.")
        merged = Norm(
            self.parts.merged(),
            self.num_features,
            eps=self.eps,
            population=self.population,
            track_running_stats=self.track_running_stats,
            device=own.device,
            dtype=own.dtype,
        )
        state = self.state_dict()
        inner, outer = ((state.pop(name) for name in stage.names) for stage in self.parts.ending.affine)
        state["class_weight"], state["class_bias"] = chain(tuple(inner), tuple(outer))
        merged.load_state_dict(state)
        merged.reach = self.reach
        return merged.train(self.training)


def _pool_rows(cut: Cut, rows: Moments) -> Moments:
    n, c, t = rows.mean.shape
    return pool(rows, cut.parts((n, c, t)))


def _pool_columns(cut: Cut, columns: Moments) -> Moments:
    """Pool over channels and strips alone: the samples are pooled already, one row a domain."""
    domains, c, t = columns.mean.shape
    return pool(columns, (domains, *cut.parts((1, c, t))[1:]))
