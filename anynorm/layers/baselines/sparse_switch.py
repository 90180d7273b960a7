"""Sparse switchable normalization (Shao et al. 2019): SN with mixing weights that become one-hot during training.

SparsestMax projects λ onto the simplex (sparsemax). If the result p is closer to the center u of the simplex than a radius r, it
is projected outwards onto the circle of radius r around u:

    p = sparsemax(λ)        ‖p − u‖ < r:  p ← u + r (p − u)/‖p − u‖

A point outside the simplex is projected back onto one of its faces, and the same step is repeated there, with the center of the
face and the remaining radius √(r² − ‖u_face − u‖²). r increases from 0 to √((k − 1)/k), where only the corners remain.
At the center itself the direction is undefined: the first of the largest λ determines it, and the gradient is that of p. So for
all λ, including equal ones, the weights are on the simplex at a distance of at least r from its center.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anynorm.core.compat import is_recomputing
from anynorm.core.mixing import Precomputed
from anynorm.kernels.interface import ForwardSpec, Params
from anynorm.kernels.sync import SyncGroup
from anynorm.layers.baselines.schedule import ScheduledNorm
from anynorm.layers.registered import GroupedNorm
from anynorm.norms import SwitchNorm

TOLERANCE = 1e-9
"""Points at a smaller distance are considered equal, and smaller weights are set to 0."""


def sparsemax(logits: Tensor) -> Tensor:
    """Project logits z (…, k) onto the simplex: max(z − τ, 0), with τ such that the sum is 1 (Martins & Astudillo 2016).

    >>> sparsemax(torch.tensor([1.0, 0.5, -1.0]))
    tensor([0.7500, 0.2500, 0.0000])
    """
    order = torch.arange(1, logits.shape[-1] + 1, dtype=logits.dtype, device=logits.device)
    ranked = logits.sort(-1, descending=True).values
    excess = ranked.cumsum(-1) - 1
    support = (order * ranked > excess).sum(-1, keepdim=True)
    return (logits - excess.gather(-1, support - 1) / support).clamp(min=0)


def sparsestmax(logits: Tensor, radius: Tensor) -> Tensor:
    """Map logits (…, k) to weights (…, k) on the simplex at a distance of at least `radius` from its center.

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
    """Return the Euclidean norms of vectors, with a gradient of 0 for zero vectors."""
    squares = vectors.square().sum(-1, keepdim=True)
    return torch.where(squares > 0, squares, 1.0).sqrt() * (squares > 0)


class SparseSwitchNorm(ScheduledNorm, GroupedNorm):
    """Sparse Switchable Normalization: SN whose mixing weights become sparse in training, until one cut remains.

        mean = w[in] μ[in] + w[ln] μ[ln] + w[bn] μ[bn]
        var  = w′[in] σ²[in] + w′[ln] σ²[ln] + w′[bn] σ²[bn]
        y    = γ (x − mean)/√(var + ε) + β
        w, w′ = sparsestmax(λ, r), r from 0 to √(2/3) in training

    The radius increases linearly between the first and last pass in the buffer `ramp`; `set_total_steps` scales it to the length
    of training. With activation checkpointing, a recomputed pass uses the radius of the latest pass. This is inexact for the
    earlier passes if several forward passes precede one backward pass.
    """

    name, paper = "ssn", "Shao et al. 2019 (after sn)"
    use = "As sn, if inference should compute one cut per layer. It needs the length of the training: set_total_steps."
    arguments = {"num_groups": 1}
    define = SwitchNorm.define
    RAMPS = {"ramp": (0, 50_000)}

    def set_total_steps(self, total_steps: int) -> None:
        """Scale the ramp: the radius increases after the first twentieth of training (not from the paper) until the end."""
        self._set_ramp("ramp", total_steps // 20, total_steps - 1)

    def radius(self) -> Tensor:
        """Return the radius of the next pass, from 0 to √((k − 1)/k), the distance of the corners from the center."""
        num_cuts = len(self.mean_cut_indices)
        again = is_recomputing() and self.advances_schedule
        passes = self.num_passes - 1 if again else self.num_passes
        return self.progress("ramp", passes, torch.float64) * math.sqrt((num_cuts - 1) / num_cuts)

    def sparse_weights(self, side: str) -> Tensor:
        """Return the mixing weights of the cuts of the mean or the variance (`side` "mean" or "var"), in the shape of λ."""
        logits: Tensor = getattr(self, f"{side}_weight")
        return sparsestmax(logits.double(), self.radius()).to(logits.dtype)

    def mixing_weights(self, side: str) -> Tensor:
        """Return the mixing weights of the cuts of the mean or the variance; see `Norm.mixing_weights`."""
        return Precomputed(self.norm_spec.mixing.groups).weights_by_channel(self.sparse_weights(side), self.num_features)

    def _make_forward_spec(self, uses_batch: tuple[bool, ...], sync_group: SyncGroup) -> ForwardSpec:
        spec = super()._make_forward_spec(uses_batch, sync_group)
        return replace(spec, norm_spec=replace(spec.norm_spec, mixing=Precomputed(self.norm_spec.mixing.groups)))

    def _params(self, condition: Any, residual: Tensor | None = None) -> Params:
        weights = {"mean_weight": self.sparse_weights("mean"), "var_weight": self.sparse_weights("var")}
        return super()._params(condition, residual)._replace(**weights)
