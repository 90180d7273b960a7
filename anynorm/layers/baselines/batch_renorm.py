"""Batch renormalization (Ioffe 2017; in sn sec. 4.1): training normalizes nearly in the same way as inference.

    r = clip(σ_batch / σ_running, 1/r_max, r_max)      d = clip((μ_batch − μ_running) / σ_running, −d_max, d_max)
    y = γ (r (x − μ_batch)/σ_batch + d) + β            no gradient through r and d

Without clipping, y in training is equal to y in inference; with r_max = 1 and d_max = 0, the norm is BN. Training starts with the
limits of BN, which then increase gradually to r_max and d_max. r_max, d_max and the schedule are buffers, so a checkpoint
contains them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from anynorm import kernels
from anynorm.core.affine import chain, inverse_std
from anynorm.core.compat import is_recomputing
from anynorm.core.moments import Moments, pool_samples
from anynorm.core.update_rules import Stats, as_tables
from anynorm.errors import SpecError
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params
from anynorm.layers.baselines.schedule import ScheduledNorm
from anynorm.layers.registered import RegisteredOptions
from anynorm.norms import BN, same_cut

if TYPE_CHECKING:
    from typing_extensions import Unpack

HISTORY = 4
"""Number of past forward passes that activation checkpointing can recompute."""


class Snapshot(NamedTuple):
    """The running statistics and the pass counter before a forward pass, which is identified by the mean of its batch."""

    batch_mean: Tensor
    stats: Stats
    passes: Tensor


class BatchRenorm(ScheduledNorm):
    """Batch Renormalization: BN whose output is corrected towards the running statistics, within limits that increase.

        r = clip(σ[bn] / σ[running], 1/r_max, r_max)
        d = clip((μ[bn] − μ[running]) / σ[running], −d_max, d_max)
        y = γ (r (x − μ[bn])/√(σ²[bn] + ε) + d) + β

    With activation checkpointing, a recomputed pass uses the same correction as the original pass, except in compiled code,
    which cannot detect a recomputation. For all other arguments, see `RegisteredNorm`.

    Args:
        r_max: final limit of r; sn uses 1.5.
        d_max: final limit of d; sn uses 0.5.

    The limits increase linearly between the first and last pass in the buffers `r_ramp` and `d_ramp`: from pass 5 000 to 40 000
    for r, and from 5 000 to 25 000 for d. `set_total_steps` changes them.
    """

    name, paper = "brn", "Ioffe 2017, in sn sec. 4.1"
    use = "Small batches, with inference as in BN. It needs the length of the training: set_total_steps."
    define = staticmethod(lambda: same_cut(BN))
    is_batch_norm_in_inference = True
    hyperparameters = {"r_max": 1.5, "d_max": 0.5}
    RAMPS = {"r_ramp": (5_000, 40_000), "d_ramp": (5_000, 25_000)}
    r_max: Tensor
    d_max: Tensor

    def __init__(
        self, num_features: int, *, r_max: float = 1.5, d_max: float = 0.5, **options: Unpack[RegisteredOptions]
    ) -> None:
        super().__init__(num_features, **options)
        self._history: list[Snapshot] = []
        self.set_hyperparameters(r_max=r_max, d_max=d_max)

    def set_hyperparameters(self, **values: float) -> None:
        """Set r_max and d_max.

        Raises:
            SpecError: if a value is out of range.
        """
        if isinstance(values.get("r_max"), int | float) and 0 <= values["r_max"] < 1:
            raise SpecError(f"r_max of brn must be at least 1, because r is clipped to [1/r_max, r_max]; got {values['r_max']}.")
        super().set_hyperparameters(**values)

    def set_total_steps(self, total_steps: int) -> None:
        """Scale the schedule: r reaches r_max after a quarter of training, d reaches d_max at 25/40 of that time.

        The ratio 25/40 is that of the paper, the quarter is not from the paper.
        """
        last = self.RAMPS["r_ramp"][1]
        for name, ramp in self.RAMPS.items():
            self._set_ramp(name, *(at * total_steps // (4 * last) for at in ramp))

    def _compute_output(self, spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
        if not (spec.pools_batch and self.updates_running_stats and self.schedule_enabled):
            return super()._compute_output(spec, x, params, buffers)
        r, d = self._correction(spec, x)
        if params.weight is not None and params.bias is not None:
            gamma, beta = chain((r, d), (params.weight, params.bias))
        else:
            gamma, beta = r, d
            spec = self._derived_spec(spec, norm_spec=spec.norm_spec.with_affine(""))
        return super()._compute_output(spec, x, params._replace(weight=gamma, bias=beta), buffers)

    @torch.no_grad()
    def _correction(self, spec: ForwardSpec, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return r and d, each (c,). In synchronized training, this requires a second exchange between processes."""
        batch = spec.sync_group.pool_moments(pool_samples(kernels.moments(x.detach(), 1)))
        _, stats, passes = self._snapshot(batch)
        r_limit, d_limit = self.limits(passes, stats.mean.dtype)
        running_inverse_std = inverse_std(stats.unbiased_var, self._eps)
        r = running_inverse_std / inverse_std(batch.var, self._eps)
        d = (batch.mean - stats.mean) * running_inverse_std
        r, d = torch.minimum(torch.maximum(r, 1 / r_limit), r_limit), torch.minimum(torch.maximum(d, -d_limit), d_limit)
        dtype = kernels.compute_dtype(x)
        return r.flatten().to(dtype), d.flatten().to(dtype)

    def _snapshot(self, batch: Moments) -> Snapshot:
        """Return the state before this batch; for a recomputation, the state before the original pass."""
        if is_recomputing():
            matching = [snapshot for snapshot in self._history if torch.equal(snapshot.batch_mean, batch.mean)]
            if matching:
                return matching[-1]
        stats = as_tables(self.running_stats(0), (1, self.num_features, 1), batch.mean.dtype)
        snapshot = Snapshot(batch.mean, stats, self.num_passes.clone())
        if not torch.compiler.is_compiling():
            self._history = [*self._history[1 - HISTORY :], snapshot]
        return snapshot

    def limits(self, passes: Tensor, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """Return the limits of r and d after a given number of passes."""
        r_limit = 1 + (self.r_max.to(dtype) - 1) * self.progress("r_ramp", passes, dtype)
        return r_limit, self.d_max.to(dtype) * self.progress("d_ramp", passes, dtype)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the history, which is only needed for recomputation."""
        return {**super().__getstate__(), "_history": []}
