"""Group whitening (Huang et al. 2021; the batch-free norm of xbn sec. 5.2.2): decorrelates the groups of channels of each sample.

Each sample is reshaped to a matrix X of shape (g, m): a row has the m values of one group. With μ the means of the rows,

    Σ = (X − μ)(X − μ)ᵀ / m + ε I        x̂ = Σ^(−½) (X − μ)        y = γ x̂ + β

so that the rows have variance 1 and are uncorrelated, up to ε. The output of a constant sample is β. With one group, it is LN.

    GroupWhitening        Σ^(−½) by five Newton iterations, as published; inexact if Σ is ill-conditioned
    GroupWhiteningZCA     Σ^(−½) by eigendecomposition, exact; cannot be exported to ONNX, which has no such operator
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anynorm import kernels
from anynorm.core.cuts import ALL, Cut
from anynorm.core.moments import table_dtype
from anynorm.core.spec import NormSpec
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params
from anynorm.layers.norm import CustomNorm
from anynorm.layers.registered import GroupedNorm
from anynorm.norms import same_cut

_PAPER = "Huang et al. 2021, in xbn sec. 5.2.2"


def _define(num_groups: int) -> NormSpec:
    return same_cut(Cut(ALL, num_groups, 1))


class Whitening(CustomNorm, GroupedNorm):
    """Base class of norms that whiten the groups of channels of each sample."""

    arguments = {"num_groups": 32}
    define = staticmethod(_define)

    def to_compute_dtype(self, x: Tensor) -> Tensor:
        """Convert x, which is float32 or float64, to the dtype of the computation."""
        return x

    def inverse_sqrt(self, cov: Tensor) -> Tensor:
        """Return Σ^(−½) of covariance matrices (n, g, g)."""
        raise NotImplementedError

    def _compute_output(self, spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
        n, c = x.shape[:2]
        values = self.to_compute_dtype(kernels.at_least_float32(x))
        means = spec.cuts.distinct[0].pool_moments(kernels.moments(values, 1)).mean  # (n, g, 1)
        groups = means.shape[1]
        size = c // groups * math.prod(x.shape[2:])
        shift = means.detach().to(values.dtype)  # the mean in the precision of x; the remainder is small
        centered = values.reshape(n, groups, size) - shift - (means - shift).to(values.dtype)
        with torch.autocast(x.device.type if torch.amp.is_autocast_available(x.device.type) else "cpu", enabled=False):
            cov = centered @ centered.transpose(1, 2) / size
            cov = cov + spec.eps * torch.eye(groups, dtype=cov.dtype, device=cov.device)
            white = (self.inverse_sqrt(cov) @ centered).reshape(x.shape)
        if params.weight is not None and params.bias is not None:
            shape = (1, c, *(1 for _ in x.shape[2:]))
            white = white * params.weight.to(white.dtype).reshape(shape) + params.bias.to(white.dtype).reshape(shape)
        return _in_format_of(x, white.to(x.dtype)), BatchStats([None])


class GroupWhitening(Whitening):
    """Whitening of the groups of channels of each sample, by Newton's iteration.

        Σ = cov of the g groups + ε I
        x̂ = Σ^(−½) (x − μ[g])
        y = γ x̂ + β

    For its arguments, see `GroupedNorm`.
    """

    name, paper, example = "gw", _PAPER, "gw:32"
    use = "A batch-free norm for XBNBlocks: as gn, with decorrelated groups."
    NUM_ITERATIONS = 5

    def inverse_sqrt(self, cov: Tensor) -> Tensor:
        """Return P/√(tr Σ) after five iterations P ← (3 P − P³ Σ/tr Σ)/2 from the identity."""
        trace = cov.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        scaled = cov / trace
        p = torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device).expand_as(cov)
        for _ in range(self.NUM_ITERATIONS):
            p = (3 * p - p @ p @ p @ scaled) / 2
        root: Tensor = p * trace.rsqrt()
        return root


class GroupWhiteningZCA(Whitening):
    """Whitening of the groups of channels of each sample, by eigendecomposition.

        Σ = cov of the g groups + ε I
        x̂ = Σ^(−½) (x − μ[g])
        y = γ x̂ + β

    For its arguments, see `GroupedNorm`.
    """

    name, paper, example = "gwzca", _PAPER, "gwzca:32"
    use = "As gw, exact, for comparison; it cannot be exported to ONNX."

    def to_compute_dtype(self, x: Tensor) -> Tensor:
        """Convert x to float64: with fewer values than groups, Σ − ε I is singular, and float32 is too inexact for a small ε."""
        return x.to(table_dtype(x))

    def inverse_sqrt(self, cov: Tensor) -> Tensor:
        """Return W = Σ^(−½) by eigendecomposition, with gradients from the equation W Σ W = I.

        W is differentiable even where eigenvalues coincide and eigenvectors are not. So the eigendecomposition is computed
        without gradients, followed by Newton steps on W Σ W − I = 0 with the derivative at the solution. Each step keeps the
        value and makes one more order of derivatives exact; two steps give exact first and second derivatives.
        """
        values, vectors = torch.linalg.eigh(cov.detach())
        roots = values.clamp(min=torch.finfo(values.dtype).tiny).sqrt()
        w: Tensor = vectors @ (vectors / roots[..., None, :]).transpose(-1, -2)
        pairs = roots[..., :, None] + roots[..., None, :]
        identity = torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)
        for _ in range(2):
            residual = vectors.transpose(-1, -2) @ (w @ cov @ w - identity) @ vectors
            w = w - vectors @ (residual / pairs) @ vectors.transpose(-1, -2)
        return w


def _in_format_of(x: Tensor, y: Tensor) -> Tensor:
    """Convert y to the memory format of x; under vmap, where the format is unknown, return y unchanged."""
    if not torch.compiler.is_compiling():
        return kernels.in_layout_of(x, y)
    for dims, channels_last in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.dim() == dims and x.is_contiguous(memory_format=channels_last) and not x.is_contiguous():
            return y.contiguous(memory_format=channels_last)
    return y
