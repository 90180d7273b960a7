"""The layer: x ─▶ moments ─▶ pooled by each cut ─▶ population ─▶ mixed ─▶ affine ─▶ y = a (x − mean) + b.

Only the kernels at the two ends touch x; everything between works on tables (n or 1, c, strips).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anynorm import kernels
from anynorm.core.affine import Coefficients, chain, standardise
from anynorm.core.condition import read_labels, read_style
from anynorm.core.cut import ALL, Cut
from anynorm.core.mix import mix
from anynorm.core.moments import Moments, pool, pool_samples, spread, table_dtype
from anynorm.core.population import Kept, Observed
from anynorm.core.state import State
from anynorm.core.sync import Alone
from anynorm.errors import ConditionError, ShapeError, SpecError

Shape = tuple[int, int, int]


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
        shape = self._admit(x)
        given = self._read(x, self.told if condition is None else condition)
        batch = self._observe(x, shape, given)
        mean, var = self._mix(self._recall(batch, shape, given, table_dtype(x)))
        a, b = self._affine(var, given)
        y = kernels.scale(x, mean, a, b)
        self._keep(batch)
        return y

    def _admit(self, x: Tensor) -> Shape:
        """Check x and give its table shape (n, c, strips)."""
        reason = self._misfit(x)
        if reason:
            raise ShapeError(f"{reason} Layer {self.spec!r} of {self.num_features} channels, input {x.dtype} {tuple(x.shape)}.")
        n, c = x.shape[:2]
        each = any(cut.space == ALL for cut in self.cuts)
        return n, c, math.prod(x.shape[2:]) if each else math.lcm(*(cut.space for cut in self.cuts))

    def _misfit(self, x: Tensor) -> str:
        """Say why x does not fit; empty where it does."""
        if not x.is_floating_point():
            return f"A norm takes floating-point values, not {x.dtype}. Call .float() on the input first."
        if x.dim() < 2:
            return f"A norm takes (n, c), (n, c, length), (n, c, h, w) or (n, c, t, h, w); {x.dim()} axes came."
        n, c = x.shape[:2]
        if c != self.num_features:
            moved = x.shape[-1] == self.num_features
            hint = "The last axis fits: move it to axis 1." if moved else f"Make the norm with {c} channels."
            return f"Axis 1 holds {c} channels, not {self.num_features}. {hint}"
        s = math.prod(x.shape[2:])
        if s == 0:
            return "There are no positions to normalise."
        misfits = [cut.misfit((n, c, s)) for cut in self.cuts if not cut.is_ghost or self._uses_batch()]
        misfits += [self._too_few((n, c, s))]
        return next(filter(None, misfits), "")

    def _too_few(self, shape: Shape) -> str:
        """Say which statistics would rest on one value in training; empty where none does.

        A live cut of one value is harmless beside others (SN on 1×1 maps); a population of them is not.
        """
        if not self.training:
            return ""
        single = [self._values(cut, shape) == 1 for cut in self.cuts]
        alone = [cut for cut, one in zip(self.cuts, single, strict=True) if one and cut.pools_samples and self._uses_batch()]
        for side in (self._mean_cuts, self._var_cuts):
            if all(single[k] and (not self.cuts[k].pools_samples or self._uses_batch()) for k in side):
                alone += [self.cuts[k] for k in side]
        return one_value(alone[0]) if alone else ""

    def _values(self, cut: Cut, shape: Shape) -> int:
        """Count the values behind one statistic; where domains or processes share samples out, at least 1 and unknown yet."""
        parts = cut.parts(shape)
        values = math.prod(whole // part if part else 0 for whole, part in zip(shape, parts, strict=True))
        counted_later = cut.pools_samples and not cut.is_ghost and (self.parts.ending.domains or self.reach != Alone())
        return 0 if counted_later else values

    def _read(self, x: Tensor, condition: Any) -> Any:
        """Turn the condition into labels (n,) or a style (mean, std); None where the norm takes none."""
        if not self.takes_condition:
            return None
        try:
            if condition is None:
                raise ConditionError(self._unconditioned())
            if self.parts.takes_style:
                return read_style(condition, x, kernels.moments, self.eps)
            return read_labels(condition, x, self.parts.classes)
        except ConditionError as error:
            raise ConditionError(f"{error} Layer {self.spec!r}, input {tuple(x.shape)}.") from None

    def _unconditioned(self) -> str:
        what = "a style" if self.parts.takes_style else f"the class or domain (0 to {self.parts.classes - 1}) of each sample"
        when = " Checkpointing computes it again after its block has ended: call backward inside." if _is_recomputing() else ""
        how = "call norm(x, condition), or the model inside `with anynorm.condition(model, condition):`"
        return f"{self.spec} needs {what}: {how}.{when}"

    def _uses_batch(self) -> bool:
        """Whether cuts that pool over samples look at this batch, or at what is kept."""
        return not self.track_running_stats or (self.training and self.population.learns)

    def _observe(self, x: Tensor, shape: Shape, given: Any) -> Batch:
        """Take the moments of x that this pass needs, pooled by each cut."""
        uses_batch, domains = self._uses_batch(), self.parts.ending.domains
        if not uses_batch and all(cut.pools_samples for cut in self.cuts):
            return Batch(None, [None for _ in self.cuts])
        rows = kernels.moments(x, shape[2])
        columns = None
        if uses_batch and self.pools_samples:
            columns = pool_samples(rows, given if domains else None, domains)
            columns = self.reach.unite(columns) if self.training else columns
            self._check_shared(columns)
        by_cut: list[Moments | None] = []
        for cut in self.cuts:
            if cut.pools_samples and columns is None:
                by_cut.append(None)
            elif cut.pools_samples and not cut.is_ghost:
                by_cut.append(_pool_columns(cut, columns))
            else:
                by_cut.append(_pool_rows(cut, rows))
        return Batch(columns, by_cut)

    def _check_shared(self, columns: Moments) -> None:
        """Refuse one value per statistic where domains or processes share the samples out."""
        shared = self.parts.ending.domains or self.reach != Alone()
        if not (shared and self.training) or torch.compiler.is_compiling():
            return
        for cut in self.cuts:
            if cut.pools_samples and not cut.is_ghost and bool((_pool_columns(cut, columns).count == 1).any()):
                raise ShapeError(f"{one_value(cut)} Layer {self.spec!r} of {self.num_features} channels.")

    def _recall(self, batch: Batch, shape: Shape, given: Any, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """Give mean and variance of each cut, from the batch or from what is kept, as tables that broadcast to `shape`."""
        found = []
        for index, moments in enumerate(batch.by_cut):
            tables = self._read_kept(index, dtype) if moments is None else moments[:2]
            if self.parts.ending.domains and self.cuts[index].pools_samples:
                tables = tuple(table.index_select(0, given) for table in tables)
            mean, var = (spread(table, shape) for table in tables)
            found.append((mean, var))
        return found

    def _mix(self, by_cut: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Weigh the cuts of the mean and those of the variance."""
        mean = mix([by_cut[k][0] for k in self._mean_cuts], self.weights("mean", by_cut[0][0].dtype))
        var = mix([by_cut[k][1] for k in self._var_cuts], self.weights("var", by_cut[0][1].dtype))
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
        learns = self.training and self.track_running_stats and self.population.learns
        if columns is None or not learns or _is_recomputing():
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


def one_value(cut: Cut) -> str:
    """Say that a statistic of one value is meaningless in training."""
    return (
        f"{cut} would take a statistic from one value in training, where the mean is the value and the variance 0. "
        "Give more samples or positions, call .eval(), or take a norm that pools over channels (ln, gn, en)."
    )


def _pool_rows(cut: Cut, rows: Moments) -> Moments:
    n, c, t = rows.mean.shape
    return pool(rows, cut.parts((n, c, t)))


def _pool_columns(cut: Cut, columns: Moments) -> Moments:
    """Pool over channels and strips alone: the samples are pooled already, one row a domain."""
    domains, c, t = columns.mean.shape
    return pool(columns, (domains, *cut.parts((1, c, t))[1:]))


def _is_recomputing() -> bool:
    """Whether activation checkpointing runs this forward again, inside backward."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
