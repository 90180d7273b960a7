"""Sparse switchable normalization (Shao et al. 2019): SN whose mixing weights become one-hot by construction.

SparsestMax projects λ onto the simplex (sparsemax) and then, if the result p is closer to the center u than the radius r,
outwards onto the circle of radius r around u:

    p = sparsemax(λ)        ‖p − u‖ < r:  p ← u + r (p − u)/‖p − u‖

A point that leaves the simplex is projected onto the face it left through, and the same step is repeated there, with the center
of the face and the remaining radius √(r² − ‖u_face − u‖²). r rises from 0 to √((k − 1)/k), where only the corners of the simplex
remain. At the center itself all directions are equal: the first largest λ determines it, and the gradient is that of p. So the
weights are on the simplex and at least r from its center for any λ, equal λ included.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anynorm.core.mixing import Precomputed
from anynorm.core.tracing import is_recomputing
from anynorm.kernels.interface import ForwardSpec, Params
from anynorm.kernels.sync import SyncGroup
from anynorm.layers.algebra import SwitchNorm
from anynorm.layers.baselines.schedule import ScheduledNorm
from anynorm.layers.registered import GroupedNorm

TOLERANCE = 1e-9
"""Points closer than this are equal, and a smaller weight is 0."""


def sparsemax(logits: Tensor) -> Tensor:
    """Return the projection of (…, k) onto the simplex: max(z − τ, 0), which sums to 1 (Martins & Astudillo 2016).

    >>> sparsemax(torch.tensor([1.0, 0.5, -1.0]))
    tensor([0.7500, 0.2500, 0.0000])
    """
    order = torch.arange(1, logits.shape[-1] + 1, dtype=logits.dtype, device=logits.device)
    ranked = logits.sort(-1, descending=True).values
    excess = ranked.cumsum(-1) - 1
    support = (order * ranked > excess).sum(-1, keepdim=True)
    return (logits - excess.gather(-1, support - 1) / support).clamp(min=0)


def sparsestmax(logits: Tensor, radius: Tensor) -> Tensor:
    """Return weights (…, k) on the simplex with a distance of at least `radius` from its center.

    >>> sparsestmax(torch.ones(3), torch.tensor(0.0)), sparsestmax(torch.ones(3), torch.tensor(6 / 9).sqrt())
    (tensor([0.3333, 0.3333, 0.3333]), tensor([1., 0., 0.]))
    """
    num_cuts = logits.shape[-1]
    first = torch.nn.functional.one_hot(logits.argmax(-1), num_cuts).to(logits.dtype)
    p = sparsemax(logits)
    for _ in range(num_cuts - 1):  # one face per round
        face = (p.detach() > TOLERANCE).to(p.dtype)
        u = face / face.sum(-1, keepdim=True)
        remaining = (radius.square() - (u - 1 / num_cuts).square().sum(-1, keepdim=True)).clamp(min=0).sqrt()
        offset = p - u
        is_center, is_inside = _length(offset) <= TOLERANCE, _length(offset) < remaining
        direction = torch.where(is_center, first - u, offset)
        outer = u + remaining * direction / _length(direction).clamp(min=TOLERANCE) + torch.where(is_center, offset, 0.0)
        p = sparsemax(torch.where(is_inside, outer, p))
    return torch.where(p > TOLERANCE, p, 0.0)


def _length(vectors: Tensor) -> Tensor:
    """Return the lengths of vectors; the derivative of the length of 0 is 0."""
    squares = vectors.square().sum(-1, keepdim=True)
    return torch.where(squares > 0, squares, 1.0).sqrt() * (squares > 0)


class SparseSwitchNorm(ScheduledNorm, GroupedNorm):
    """SN whose mixing weights become sparse in training, until one cut remains for the mean and one for the variance.

    The radius rises between the passes `ramp` (a buffer); `set_total_steps` scales it to a whole training. A pass that activation
    checkpointing recomputes has the radius of the latest pass: if several passes wait for one backward, the radius of the earlier
    ones is off by as many passes as came after them.
    """

    name, paper = "ssn", "Shao et al. 2019 (after sn)"
    use = "As sn, if inference should compute one cut per layer. It needs the length of the training: set_total_steps."
    arguments = {"num_groups": 1}
    define = SwitchNorm.define
    formula = (
        "mean = w[in] μ[in] + w[ln] μ[ln] + w[bn] μ[bn]",
        "var  = w′[in] σ²[in] + w′[ln] σ²[ln] + w′[bn] σ²[bn]",
        "y    = γ (x − mean)/√(var + ε) + β",
        "w, w′ = sparsestmax(λ, r), r from 0 to √(2/3) in training",
    )
    RAMPS = {"ramp": (0, 50_000)}

    def set_total_steps(self, total_steps: int) -> None:
        """Scale the ramp: the radius rises after the first twentieth of training (our choice)."""
        self._set_ramp("ramp", total_steps // 20, total_steps - 1)

    def radius(self) -> Tensor:
        """Return the radius of the next pass, from 0 to that of the corners."""
        num_cuts = len(self.mean_cut_indices)
        again = is_recomputing() and self.advances_schedule
        passes = self.num_passes - 1 if again else self.num_passes
        return self.progress("ramp", passes, torch.float64) * math.sqrt((num_cuts - 1) / num_cuts)

    def sparse_weights(self, side: str) -> Tensor:
        """Return the mixing weights of the cuts of the "mean" or the "var", in the shape of λ."""
        logits: Tensor = getattr(self, f"{side}_weight")
        return sparsestmax(logits.double(), self.radius()).to(logits.dtype)

    def mixing_weights(self, side: str) -> Tensor:
        """Return the mixing weights of the cuts of the "mean" or the "var": (1, k), or (c, k) with channel groups."""
        return Precomputed(self.norm_spec.mixing.groups).weights_by_channel(self.sparse_weights(side), self.num_features)

    def _make_forward_spec(self, uses_batch: tuple[bool, ...], sync_group: SyncGroup) -> ForwardSpec:
        spec = super()._make_forward_spec(uses_batch, sync_group)
        return replace(spec, norm_spec=replace(spec.norm_spec, mixing=Precomputed(self.norm_spec.mixing.groups)))

    def _params(self, condition: Any) -> Params:
        return super()._params(condition)._replace(mean_weight=self.sparse_weights("mean"), var_weight=self.sparse_weights("var"))
