"""Batch renormalization (Ioffe 2017; in sn sec. 4.1): a batch is normalised nearly as inference will do it.

    r = clip(σ_batch / σ_kept, 1/r_max, r_max)      d = clip((μ_batch − μ_kept) / σ_kept, −d_max, d_max)
    y = γ (r (x − μ_batch)/σ_batch + d) + β         no gradient goes through r and d

With unlimited r and d, y is what inference gives; with r_max = 1, d_max = 0 it is BN. Training starts as BN and the limits rise
step by step. Limits and schedule are buffers, so that a run that goes on goes on with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anynorm import kernels
from anynorm.core.affine import standardize
from anynorm.core.moments import Moments, pool_samples
from anynorm.core.update_rules import Stats, as_tables
from anynorm.errors import SpecError
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params
from anynorm.layers.baselines.schedule import Scheduled
from anynorm.layers.running_stats import is_recomputing

REMEMBERED = 4
"""How many passes back a recomputation may reach."""


class Earlier(NamedTuple):
    """A pass: the mean of its batch, by which it is known again, and what was kept and counted before it."""

    mean: Tensor
    kept: Stats
    passes: Tensor


class BatchRenorm(Scheduled):
    """BN corrected towards the kept statistics, within limits that rise in training.

    r_max, d_max        how far the correction may go in the end; sn takes 1.5 and 0.5
    r_ramp, d_ramp      the passes (first, last) between which each limit rises; Ioffe's 5 000 to 40 000 and to 25 000

    A pass that activation checkpointing computes again is corrected as it was the first time, except in compiled code, which does
    not know that it does.
    """

    name, alias_of, paper = "brn", "bn", "Ioffe 2017, in sn sec. 4.1"
    settings = {"r_max": 1.5, "d_max": 0.5}
    formula = (
        "r = clip(σ[bn] / σ[kept], 1/r_max, r_max)",
        "d = clip((μ[bn] − μ[kept]) / σ[kept], −d_max, d_max)",
        "y = γ (r (x − μ[bn])/√(σ²[bn] + ε) + d) + β",
    )
    RAMPS = {"r_ramp": (5_000, 40_000), "d_ramp": (5_000, 25_000)}
    r_max: Tensor
    d_max: Tensor

    def _register_parameters(self, device: Any, dtype: Any) -> None:
        super()._register_parameters(device, dtype)
        self.earlier: list[Earlier] = []

    def set(self, settings: Mapping[str, Any]) -> None:
        """Set the limits."""
        super().set(settings)
        if settings.get("r_max", 1) < 1:
            raise SpecError(f"brn got r_max={settings['r_max']}; r is held between 1/r_max and r_max, so it is 1 or more.")

    def set_total_steps(self, passes: int) -> None:
        """Let r have its limit after a quarter of training (our choice), and the rest in the paper's proportions."""
        whole = self.RAMPS["r_ramp"][1]
        for name, ramp in self.RAMPS.items():
            self._place(name, *(at * passes // (4 * whole) for at in ramp))

    def _pass(self, task: ForwardSpec, x: Tensor, owned: Params, given: Buffers) -> tuple[Tensor, BatchStats]:
        if not (self.updates_running_stats and self.schedule_enabled):
            return super()._pass(task, x, owned, given)
        r, d = self._correct(task, x)
        gamma = r if owned.weight is None else owned.weight * r
        beta = d if owned.weight is None or owned.bias is None else owned.weight * d + owned.bias
        if owned.weight is None:
            task = self._varied(task, norm_spec=task.norm_spec.with_affine(""))
        return super()._pass(task, x, owned._replace(weight=gamma, bias=beta), given)

    @torch.no_grad()
    def _correct(self, task: ForwardSpec, x: Tensor) -> tuple[Tensor, Tensor]:
        """Give r and d of each channel; where passes are synchronised, this is a second exchange."""
        seen = task.sync_group.all_reduce(pool_samples(kernels.moments(x.detach(), 1)))
        _, kept, passes = self._recall(seen)
        r_limit, d_limit = self.limits(passes, kept.mean.dtype)
        inverse, _ = standardize(kept.unbiased_var, self.eps)
        r = inverse / standardize(seen.var, self.eps)[0]
        d = (seen.mean - kept.mean) * inverse
        r, d = torch.minimum(torch.maximum(r, 1 / r_limit), r_limit), torch.minimum(torch.maximum(d, -d_limit), d_limit)
        dtype = kernels.working(x[:0]).dtype
        return r.flatten().to(dtype), d.flatten().to(dtype)

    def _recall(self, seen: Moments) -> Earlier:
        """Give what was there before this batch: a recomputation must not see that the batch, and others, have moved it since."""
        if not torch.compiler.is_compiling() and is_recomputing():
            known = [one for one in self.earlier if torch.equal(one.mean, seen.mean)]
            if known:
                return known[-1]
        shape = (1, self.num_features, 1)
        now = Earlier(seen.mean, as_tables(self.running_stats(0), shape, seen.mean.dtype), self.num_passes.clone())
        if not torch.compiler.is_compiling():
            self.earlier = [*self.earlier[1 - REMEMBERED :], now]
        return now

    def limits(self, passes: Tensor, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """Give the largest r and d after so many passes."""
        r_limit = 1 + (self.r_max.to(dtype) - 1) * self.progress("r_ramp", passes, dtype)
        return r_limit, self.d_max.to(dtype) * self.progress("d_ramp", passes, dtype)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only a recomputation would ask for."""
        return {**super().__getstate__(), "earlier": []}
