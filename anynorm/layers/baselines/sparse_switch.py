"""Sparse switchable normalization (Shao et al. 2019): SN whose weights end one-hot, by the way they are computed.

SparsestMax projects λ onto the simplex (sparsemax), and out onto a circle of radius r around its centre u where that fell short:

    p = sparsemax(λ)        ‖p − u‖ < r:  p ← u + r (p − u)/‖p − u‖

What leaves the simplex is projected onto the face it left by, and the same is done there, with u the centre of the face and
the radius that is left, √(r² − ‖u_face − u‖²). r rises from 0 to √((k − 1)/k), where the simplex has nothing but its corners.
At the centre itself every direction is as good: the first largest λ has it, and the gradient is that of p. So weights are on the
simplex, and r from its centre, whatever λ is, equal λ included.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anynorm.core.mixing import Precomputed
from anynorm.kernels.interface import ForwardSpec, Params
from anynorm.layers.baselines.schedule import Scheduled
from anynorm.layers.distributed import SyncGroup
from anynorm.layers.running_stats import is_recomputing

SAME = 1e-9
"""Two points nearer than this are one, and a smaller weight is none."""


def sparsemax(logits: Tensor) -> Tensor:
    """Project (…, k) onto the simplex: max(z − τ, 0), which sums to 1 (Martins & Astudillo 2016).

    >>> sparsemax(torch.tensor([1.0, 0.5, -1.0]))
    tensor([0.7500, 0.2500, 0.0000])
    """
    order = torch.arange(1, logits.shape[-1] + 1, dtype=logits.dtype, device=logits.device)
    ranked = logits.sort(-1, descending=True).values
    excess = ranked.cumsum(-1) - 1
    support = (order * ranked > excess).sum(-1, keepdim=True)
    return (logits - excess.gather(-1, support - 1) / support).clamp(min=0)


def sparsestmax(logits: Tensor, radius: Tensor) -> Tensor:
    """Give weights (…, k) on the simplex, no nearer to its centre than `radius`.

    >>> sparsestmax(torch.ones(3), torch.tensor(0.0)), sparsestmax(torch.ones(3), torch.tensor(6 / 9).sqrt())
    (tensor([0.3333, 0.3333, 0.3333]), tensor([1., 0., 0.]))
    """
    cuts = logits.shape[-1]
    first = torch.nn.functional.one_hot(logits.argmax(-1), cuts).to(logits.dtype)
    p = sparsemax(logits)
    for _ in range(cuts - 1):  # a face a round
        face = (p.detach() > SAME).to(p.dtype)
        u = face / face.sum(-1, keepdim=True)
        left = (radius.square() - (u - 1 / cuts).square().sum(-1, keepdim=True)).clamp(min=0).sqrt()
        away = p - u
        tied, short = _length(away) <= SAME, _length(away) < left
        way = torch.where(tied, first - u, away)
        out = u + left * way / _length(way).clamp(min=SAME) + torch.where(tied, away, 0.0)
        p = sparsemax(torch.where(short, out, p))
    return torch.where(p > SAME, p, 0.0)


def _length(vectors: Tensor) -> Tensor:
    """Give the lengths of vectors; that of none has a derivative of 0."""
    squares = vectors.square().sum(-1, keepdim=True)
    return torch.where(squares > 0, squares, 1.0).sqrt() * (squares > 0)


class SparseSwitchNorm(Scheduled):
    """SN whose weights grow sparse in training, until one cut is left for the mean and one for the variance.

    ramp: the passes (first, last) between which the radius rises; `pace` sets it to a whole training.

    A pass that activation checkpointing computes again has the radius of the last pass: where several wait for one backward,
    that of the others is off by as many passes as came after them.
    """

    name, alias_of, paper = "ssn", "in+ln+bn.groups:{num_groups}", "Shao et al. 2019 (after sn)"
    arguments = {"num_groups": 1}
    formula = (
        "mean = w[in] μ[in] + w[ln] μ[ln] + w[bn] μ[bn]",
        "var  = w′[in] σ²[in] + w′[ln] σ²[ln] + w′[bn] σ²[bn]",
        "y    = γ (x − mean)/√(var + ε) + β",
        "w, w′ = sparsestmax(λ, r), r from 0 to √(2/3) in training",
    )
    RAMPS = {"ramp": (0, 50_000)}

    def set_total_steps(self, passes: int) -> None:
        """Let the radius rise over training but for its first twentieth, in which λ finds its way (our choice)."""
        self._place("ramp", passes // 20, passes - 1)

    def radius(self) -> Tensor:
        """Give the radius of the next pass: 0 to begin with, that of the corners in the end."""
        cuts = len(self.mean_cuts)
        again = not torch.compiler.is_compiling() and is_recomputing() and self.learns_schedule
        passes = self.num_passes - 1 if again else self.num_passes
        return self.progress("ramp", passes, torch.float64) * math.sqrt((cuts - 1) / cuts)

    def sparse(self, side: str) -> Tensor:
        """Give the weights of the cuts of a side, as λ is shaped."""
        logits: Tensor = getattr(self, f"{side}_weight")
        return sparsestmax(logits.double(), self.radius()).to(logits.dtype)

    def weights(self, side: str) -> Tensor:
        """Give the weights of the cuts of the `mean` or the `var`: (1, k), or (c, k) with groups."""
        return Precomputed(self.norm_spec.mixing.groups).spread(self.sparse(side), self.num_features)

    def _make_task(self, looks: tuple[bool, ...], reach: SyncGroup) -> ForwardSpec:
        task = super()._make_task(looks, reach)
        return replace(task, norm_spec=replace(task.norm_spec, mixing=Precomputed(self.norm_spec.mixing.groups)))

    def _owned(self, told: Any) -> Params:
        return super()._owned(told)._replace(mean_weight=self.sparse("mean"), var_weight=self.sparse("var"))
