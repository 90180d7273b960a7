"""Batch renormalization (Ioffe 2017; in sn sec. 4.1): a batch is normalised nearly as inference will do it.

    r = clip(σ_batch / σ_kept, 1/r_max, r_max)      d = clip((μ_batch − μ_kept) / σ_kept, −d_max, d_max)
    y = γ (r (x − μ_batch)/σ_batch + d) + β         no gradient goes through r and d

With unlimited r and d, y is what inference gives; with r_max = 1, d_max = 0 it is BN. Training starts as BN and the limits rise
step by step. Limits and schedule are buffers, so that a run that goes on goes on with them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anynorm import kernels
from anynorm.core.affine import standardise
from anynorm.core.keeper import is_recomputing
from anynorm.core.moments import Moments, pool_samples
from anynorm.core.population import Kept, tables_of
from anynorm.core.state import Beyond
from anynorm.core.task import Batch, Given, Owned, Task
from anynorm.named import Named


class BatchRenorm(Beyond, Named):
    """BN corrected towards the kept statistics, within limits that rise in training.

    r_max, d_max        how far the correction may go in the end; sn takes 1.5 and 0.5
    r_ramp, d_ramp      the batches (first, last) between which each limit rises; Ioffe's 5 000 to 40 000 and to 25 000
    """

    name, stands_for, paper = "brn", "bn", "Ioffe 2017, in sn sec. 4.1"
    settings = {"r_max": 1.5, "d_max": 0.5}
    formula = (
        "r = clip(σ[bn] / σ[kept], 1/r_max, r_max)",
        "d = clip((μ[bn] − μ[kept]) / σ[kept], −d_max, d_max)",
        "y = γ (r (x − μ[bn])/√(σ²[bn] + ε) + d) + β",
    )
    RAMPS = {"r_ramp": (5_000, 40_000), "d_ramp": (5_000, 25_000)}
    PUBLISHED_STEPS = 160_000  # the length of training that the ramps are made for
    r_max: Tensor
    d_max: Tensor
    r_ramp: Tensor
    d_ramp: Tensor

    def _register_parameters(self, device: Any, dtype: Any) -> None:
        super()._register_parameters(device, dtype)
        self.earlier: Kept | None = None
        for name, limit in self.settings.items():
            self.register_buffer(name, torch.tensor(limit, device=device, dtype=dtype))
        for name, ramp in self.RAMPS.items():
            self.register_buffer(name, torch.tensor(ramp, device=device))

    def pace(self, steps: int) -> None:
        """Let the limits rise over the same shares of training as in the paper."""
        for name, ramp in self.RAMPS.items():
            first, last = (at * steps // self.PUBLISHED_STEPS for at in ramp)
            buffer = self.get_buffer(name)
            buffer.copy_(torch.tensor([first, max(last, first + 1)]))

    def _pass(self, task: Task, x: Tensor, owned: Owned, given: Given) -> tuple[Tensor, Batch]:
        if not self.learns_population:
            return super()._pass(task, x, owned, given)
        r, d = self._correct(task, x)
        gamma = r if owned.weight is None else owned.weight * r
        beta = d if owned.weight is None or owned.bias is None else owned.weight * d + owned.bias
        if owned.weight is None:
            task = self._varied(task, parts=task.parts.with_ending(""))
        return super()._pass(task, x, owned._replace(weight=gamma, bias=beta), given)

    @torch.no_grad()
    def _correct(self, task: Task, x: Tensor) -> tuple[Tensor, Tensor]:
        """Give r and d of each channel."""
        seen = task.reach.unite(pool_samples(kernels.moments(x.detach(), 1), None, 0))
        kept = self._recall(seen)
        r_limit, d_limit = self.limits(kept.mean.dtype)
        inverse, _ = standardise(kept.unbiased_var, self.eps)
        r = inverse / standardise(seen.var, self.eps)[0]
        d = (seen.mean - kept.mean) * inverse
        r, d = torch.minimum(torch.maximum(r, 1 / r_limit), r_limit), torch.minimum(torch.maximum(d, -d_limit), d_limit)
        like = x.dtype if x.dtype == torch.float64 else torch.float32
        return r.flatten().to(like), d.flatten().to(like)

    def _recall(self, seen: Moments) -> Kept:
        """Give what was kept before this batch: a recomputation must not see that the batch has moved it since."""
        if torch.compiler.is_compiling() or not is_recomputing() or self.earlier is None:
            earlier = tables_of(self.kept_of(0), task_shape(seen), seen.mean.dtype)
            if torch.compiler.is_compiling():
                return earlier
            self.earlier = earlier
        return self.earlier

    def limits(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Give the largest r and d of the next batch."""
        batches = self.num_batches_tracked
        assert batches is not None  # it learns its population
        if not torch.compiler.is_compiling() and is_recomputing():
            batches = batches - 1
        shares = []
        for first, last in (self.r_ramp.unbind(), self.d_ramp.unbind()):
            shares.append(((batches - first).to(dtype) / (last - first).clamp(min=1)).clamp(0, 1))
        return 1 + (self.r_max.to(dtype) - 1).clamp(min=0) * shares[0], self.d_max.to(dtype) * shares[1]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only a recomputation would ask for."""
        return {**super().__getstate__(), "earlier": None}


def task_shape(moments: Moments) -> tuple[int, int, int]:
    """Give the shape of a table of moments."""
    n, c, t = moments.mean.shape
    return n, c, t
