"""Sparse switchable normalization (Shao et al. 2019): SN whose weights end one-hot, by the way they are computed.

SparsestMax projects λ onto the simplex (sparsemax), and out onto a circle of radius r around its centre u where that fell short:

    p = sparsemax(λ)        ‖p − u‖ < r:  p ← u + r (p − u)/‖p − u‖

What leaves the simplex is projected onto the face it left by, and the same is done there, with u the centre of the face and
the radius that is left, √(r² − ‖u_face − u‖²). r rises from 0 to √((k − 1)/k), where the simplex has nothing but its corners.
At the centre itself every direction is as good: the first largest λ has it. So weights are on the simplex, and r from its
centre, whatever λ is, equal λ included.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anynorm.core.keeper import is_recomputing, recomputing
from anynorm.core.mix import Given
from anynorm.core.state import Beyond
from anynorm.core.task import Batch, Owned, Task
from anynorm.named import Named

SAME = 1e-12
"""Two points nearer than this are one."""


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
        face = (p.detach() > 0).to(p.dtype)
        u = face / face.sum(-1, keepdim=True)
        left = (radius.square() - (u - 1 / cuts).square().sum(-1, keepdim=True)).clamp(min=0).sqrt()
        away = p - u
        way = torch.where(away.square().sum(-1, keepdim=True) > SAME**2, away, first - u)
        length = way.square().sum(-1, keepdim=True).clamp(min=SAME**2).sqrt()
        short = away.square().sum(-1, keepdim=True) < left.square()
        p = sparsemax(torch.where(short, u + left / length * way, p))
    return p


class SparseSwitchNorm(Beyond, Named):
    """SN whose weights grow sparse in training, until one cut is left for the mean and one for the variance.

    ramp: the passes (first, last) between which the radius rises; `pace` sets it to a whole training.
    """

    name, stands_for, paper = "ssn", "in+ln+bn.groups:{num_groups}", "Shao et al. 2019 (after sn)"
    arguments = {"num_groups": 1}
    formula = (
        "mean = w[in] μ[in] + w[ln] μ[ln] + w[bn] μ[bn]",
        "var  = w′[in] σ²[in] + w′[ln] σ²[ln] + w′[bn] σ²[bn]",
        "y    = γ (x − mean)/√(var + ε) + β",
        "w, w′ = sparsestmax(λ, r), r from 0 to √(2/3) in training",
    )
    ramp: Tensor
    num_passes: Tensor

    def _register_parameters(self, device: Any, dtype: Any) -> None:
        super()._register_parameters(device, dtype)
        self.register_buffer("ramp", torch.tensor([0, 50_000], device=device))
        self.register_buffer("num_passes", torch.zeros((), dtype=torch.long, device=device))

    def reset_parameters(self) -> None:
        """Start over, with equal weights."""
        super().reset_parameters()
        self.num_passes.zero_()

    def pace(self, steps: int) -> None:
        """Let the radius rise over all of training."""
        self.ramp.copy_(torch.tensor([0, max(steps - 1, 1)]))

    def radius(self) -> Tensor:
        """Give the radius of the next pass: 0 to begin with, that of the corners in the end."""
        cuts = len(self.mean_cuts)
        passes = self.num_passes - 1 if not torch.compiler.is_compiling() and is_recomputing() else self.num_passes
        first, last = self.ramp.unbind()
        share = ((passes - first).double() / (last - first).clamp(min=1)).clamp(0, 1)
        return share * math.sqrt((cuts - 1) / cuts)

    def sparse(self, side: str) -> Tensor:
        """Give the weights of the cuts of a side, as λ is shaped."""
        logits: Tensor = getattr(self, f"{side}_weight")
        return sparsestmax(logits.double(), self.radius()).to(logits.dtype)

    def weights(self, side: str) -> Tensor:
        """Give the weights of the cuts of the `mean` or the `var`: (1, k), or (c, k) with groups."""
        return Given(self.parts.weighing.groups).spread(self.sparse(side), self.num_features)

    def keep(self, batch: Batch) -> None:
        """Move what is kept by one batch, and the schedule by one pass."""
        super().keep(batch)
        if self.training and self.population.learns and not is_recomputing():
            step: Any = 1
            if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
                step = 1 - recomputing(self.num_passes).long()
            self.num_passes.add_(step)

    def _make_task(self, looks: tuple[bool, ...], reach: Any) -> Task:
        task = super()._make_task(looks, reach)
        return replace(task, parts=replace(task.parts, weighing=Given(self.parts.weighing.groups)))

    def _owned(self, told: Any) -> Owned:
        return super()._owned(told)._replace(mean_weight=self.sparse("mean"), var_weight=self.sparse("var"))
