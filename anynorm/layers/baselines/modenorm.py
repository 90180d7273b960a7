"""Mode normalization (Deecke et al. 2019; in sabn Tables 3 and 4): BN with K modes, to which a gate softly assigns each sample.

    g_n = softmax(V x̄_n + v)                         x̄_n: spatial mean of sample n; g_n: its K weights
    μ_k = Σ_n w_nk x̄_n                               w_nk = g_nk / Σ_n g_nk
    σ²_k = Σ_n w_nk (var(x_n) + (x̄_n − μ_k)²)
    y_n = γ Σ_k g_nk (x_n − μ_k)/√(σ²_k + ε) + β

Only the moments of samples are weighted, not x, so each mode needs n·c numbers of additional memory. The result is y = a x + b
per sample and channel. The kernels compute it as IN followed by the style (mean, std) for which the composition is a x + b.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anynorm import kernels
from anynorm.core.affine import inverse_std
from anynorm.core.moments import Moments, merge_moments
from anynorm.core.spec import ResolvedCuts
from anynorm.core.update_rules import as_tables
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params
from anynorm.kernels.sync import NoSync
from anynorm.layers.norm import CustomNorm
from anynorm.layers.registered import RegisteredNorm, RegisteredOptions
from anynorm.norms import BN, IN, same_cut

if TYPE_CHECKING:
    from typing_extensions import Unpack

IN_WITH_STYLE = {
    "norm_spec": same_cut(IN).with_affine("style"),
    "cuts": ResolvedCuts((IN,), (0,), (0,)),
    "eps": 1e-5,  # cancels in the composition of IN and style
    "uses_batch": (True,),
    "sync_group": NoSync(),
}


class ModeNorm(CustomNorm, RegisteredNorm):
    """Mode Normalization: BN with separate statistics for K modes, to which a learned gate softly assigns samples.

        g[k] = softmax(V mean(x) + v)
        mean[k], var[k] = μ, σ² [bn] of samples weighted by g[k]
        y = γ Σ g[k] (x − mean[k])/√(var[k] + ε) + β

    For all other arguments, see `RegisteredNorm`.

    Args:
        num_modes: number of modes K.
    """

    name, paper, example = "modenorm", "Deecke et al. 2019, in sabn Tables 3, 4", "modenorm:2"
    use = "Data of several domains without domain labels."
    arguments = {"num_modes": 2}
    define = staticmethod(lambda num_modes: same_cut(BN))  # noqa: ARG005  # `stat_sets_arg` sets the number of sets of statistics
    stat_sets_arg = "num_modes"
    gate_weight: nn.Parameter
    gate_bias: nn.Parameter

    def __init__(self, num_features: int, num_modes: int | None = None, **options: Unpack[RegisteredOptions]) -> None:
        self._initialize(num_features, {"num_modes": num_modes}, **options)

    def _register_parameters(self, device: Any, dtype: Any) -> None:
        super()._register_parameters(device, dtype)
        num_modes, options = self.norm_spec.num_stat_sets, {"device": device, "dtype": dtype}
        self.gate_weight = nn.Parameter(torch.empty(num_modes, self.num_features, **options))
        self.gate_bias = nn.Parameter(torch.empty(num_modes, **options))

    def reset_parameters(self) -> None:
        """Reset all parameters; the gate is initialized as nn.Linear."""
        super().reset_parameters()
        nn.init.kaiming_uniform_(self.gate_weight, a=math.sqrt(5))
        nn.init.uniform_(self.gate_bias, -1 / math.sqrt(self.num_features), 1 / math.sqrt(self.num_features))

    def not_foldable_reason(self) -> str | None:
        """Return why the layer cannot be folded: the gate depends on the input."""
        return "its gate depends on each input, so no fixed (a, b) exists"

    def _compute_output(self, spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
        rows = kernels.moments(x, 1)
        gates = self.gates(rows)
        modes, batch = self._modes(spec, rows, gates, buffers)
        weights = gates[:, :, None, None] * inverse_std(modes.var, spec.eps)  # (n, k, c, 1)
        instance = self._derived_spec(spec, **IN_WITH_STYLE)
        gamma = weights.sum(1) / inverse_std(rows.var, instance.eps)
        beta = (weights * (rows.mean[:, None] - modes.mean)).sum(1)
        gamma, beta = gamma[..., 0], beta[..., 0]
        if params.weight is not None and params.bias is not None:
            weight = params.weight.to(gamma.dtype)
            gamma, beta = gamma * weight, beta * weight + params.bias.to(gamma.dtype)
        y, _ = kernels.normalize(instance, x, Params(style_mean=beta, style_std=gamma), Buffers((None,), None))
        return y, batch

    def gates(self, rows: Moments) -> Tensor:
        """Return the weights of the modes for each sample, (n, k)."""
        means = rows.mean[..., 0]
        weight, bias = self.gate_weight.to(means.dtype), self.gate_bias.to(means.dtype)
        return (means @ weight.T + bias).softmax(-1)

    def _modes(self, spec: ForwardSpec, rows: Moments, gates: Tensor, buffers: Buffers) -> tuple[Moments, BatchStats]:
        """Return the moments of each mode, (k, c, 1), from the batch or from running statistics, and the batch statistics."""
        running = buffers.running_stats[0]
        if running is not None and not spec.uses_batch[0]:
            mean, var = as_tables(running, (self.norm_spec.num_stat_sets, self.num_features, 1), rows.mean.dtype)
            return Moments(mean, var, torch.ones_like(mean)), BatchStats([None])
        modes = spec.sync_group.pool_moments(pool_by_fractions(rows, gates))
        return modes, BatchStats([modes], modes, modes.count[:, :1].detach())

    def moments_of(self, x: Tensor) -> Moments:
        """Return the moments of x for each mode, (k, c, 1)."""
        rows = kernels.moments(x, 1)
        return pool_by_fractions(rows, self.gates(rows))


def pool_by_fractions(rows: Moments, gates: Tensor) -> Moments:
    """Pool the moments (n, c, 1) of samples into moments (k, c, 1) of modes, with the weights `gates` (n, k)."""
    n, c, _ = rows.mean.shape
    count = (rows.count * gates.T[..., None, None]).expand(-1, n, c, 1)
    mean, var = (table.expand_as(count) for table in rows[:2])
    pooled = merge_moments(Moments(mean, var, count), lambda table: table.sum(1, keepdim=True), lambda table: table)
    return Moments(*(table.squeeze(1) for table in pooled))
