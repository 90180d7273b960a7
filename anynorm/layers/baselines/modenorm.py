"""Mode normalization (Deecke et al. 2019; in sabn Tables 3 and 4): BN over K modes that a gate shares the samples out to.

    g_n = softmax(V x̄_n + v)                         x̄_n the spatial mean of sample n, K shares
    μ_k = Σ_n w_nk x̄_n                               w_nk = g_nk / Σ_n g_nk
    σ²_k = Σ_n w_nk (var(x_n) + (x̄_n − μ_k)²)
    y_n = γ Σ_k g_nk (x_n − μ_k)/√(σ²_k + ε) + β

Only moments of samples are shared out, never x: memory grows by n·c numbers a mode. y is a x + b for each sample and channel, so
the big tensor sees an IN whose style takes back what the IN did.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from anynorm import kernels
from anynorm.core.affine import Style, standardize
from anynorm.core.cuts import ALL, Cut
from anynorm.core.moments import Moments, union
from anynorm.core.spec import AffineSpec, NormSpec, ResolvedCuts
from anynorm.core.update_rules import as_tables
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params
from anynorm.layers.distributed import NoSync
from anynorm.layers.registered import RegisteredNorm
from anynorm.layers.state import CustomNorm

SAMPLE = Cut(ALL, ALL, 1)
STYLED = NormSpec((SAMPLE,), (SAMPLE,), affine=AffineSpec((Style(),)))
FITTED = ResolvedCuts((SAMPLE,), (0,), (0,))
EPS = 1e-5
"""Of the IN that a style takes back: any would do."""


class ModeNorm(CustomNorm, RegisteredNorm):
    """BN statistics of K modes; a gate on the spatial mean shares each sample out to them."""

    name, alias_of, paper = "modenorm", "bn", "Deecke et al. 2019, in sabn Tables 3, 4"
    arguments = {"num_modes": 2}
    stat_sets_arg = "num_modes"
    example = "modenorm:2"
    formula = (
        "g[k] = softmax(V mean(x) + v)",
        "mean[k], var[k] = μ, σ² [bn] of samples weighed by g[k]",
        "y = γ Σ g[k] (x − mean[k])/√(var[k] + ε) + β",
    )
    gate_weight: nn.Parameter
    gate_bias: nn.Parameter

    def _register_parameters(self, device: Any, dtype: Any) -> None:
        super()._register_parameters(device, dtype)
        modes, like = self.norm_spec.num_stat_sets, {"device": device, "dtype": dtype}
        self.gate_weight = nn.Parameter(torch.empty(modes, self.num_features, **like))
        self.gate_bias = nn.Parameter(torch.empty(modes, **like))

    def reset_parameters(self) -> None:
        """Start over, the gate as torch starts a linear layer."""
        super().reset_parameters()
        nn.init.kaiming_uniform_(self.gate_weight, a=math.sqrt(5))
        nn.init.uniform_(self.gate_bias, -1 / math.sqrt(self.num_features), 1 / math.sqrt(self.num_features))

    def not_foldable_reason(self) -> str:
        """Say that the gate looks at each input."""
        return "its gate shares each input out to the modes anew, so no fixed (a, b) exists"

    def _pass(self, task: ForwardSpec, x: Tensor, owned: Params, given: Buffers) -> tuple[Tensor, BatchStats]:
        rows = kernels.moments(x, 1)
        gates = self.gates(rows)
        modes, batch = self._modes(task, rows, gates, given)
        inverse, _ = standardize(modes.var, task.eps)
        shares = gates[:, :, None, None] * inverse  # (n, k, c, 1)
        gamma = shares.sum(1) / standardize(rows.var, EPS)[0]
        beta = (shares * (rows.mean[:, None] - modes.mean)).sum(1)
        gamma, beta = gamma[..., 0], beta[..., 0]
        if owned.weight is not None and owned.bias is not None:
            weight = owned.weight.to(gamma.dtype)
            gamma, beta = gamma * weight, beta * weight + owned.bias.to(gamma.dtype)
        styled = self._varied(task, norm_spec=STYLED, fitted=FITTED, eps=EPS, uses_batch=(True,), sync_group=NoSync())
        y, _ = kernels.normalize(styled, x, Params(style_mean=beta, style_std=gamma), Buffers(kept=(None,), labels=None))
        return y, batch

    def gates(self, rows: Moments) -> Tensor:
        """Share samples out to the modes: (n, k)."""
        key = rows.mean[..., 0]
        weight, bias = self.gate_weight.to(key.dtype), self.gate_bias.to(key.dtype)
        return (key @ weight.T + bias).softmax(-1)

    def _modes(self, task: ForwardSpec, rows: Moments, gates: Tensor, given: Buffers) -> tuple[Moments, BatchStats]:
        """Give the moments of each mode, (k, c, 1), from the batch or as kept."""
        kept = given.kept[0]
        if kept is not None:
            mean, var = as_tables(kept, (self.norm_spec.num_stat_sets, self.num_features, 1), rows.mean.dtype)
            return Moments(mean, var, torch.ones_like(mean)), BatchStats([None])
        modes = task.sync_group.all_reduce(share_out(rows, gates))
        return modes, BatchStats([modes], modes, modes.count[:, :1].detach())

    def moments_of(self, x: Tensor) -> Moments:
        """Give the moments of what each mode has of x: (k, c, 1)."""
        rows = kernels.moments(x, 1)
        return share_out(rows, self.gates(rows))


def share_out(rows: Moments, gates: Tensor) -> Moments:
    """Pool the moments of samples, (n, c, 1), each with its shares in the modes, (n, k): (k, c, 1)."""
    n, c, _ = rows.mean.shape
    count = (rows.count * gates.T[..., None, None]).expand(-1, n, c, 1)
    mean, var = (table.expand_as(count) for table in rows[:2])
    shared = union(Moments(mean, var, count), lambda table: table.sum(1, keepdim=True), lambda table: table)
    return Moments(*(table.squeeze(1) for table in shared))
