"""Group whitening (Huang et al. 2021; the batch-free norm of xbn sec. 5.2.2): groups of channels of a sample, decorrelated.

Each sample is g rows, a row being a group of channels at all positions. With μ the means of the rows,

    Σ = (X − μ)(X − μ)ᵀ / m + ε I        x̂ = Σ^(−½) (X − μ)        y = γ x̂ + β

so that the rows have variance 1 and are uncorrelated. ε is on the covariance: a constant sample gives β. With one group it is LN.

    GroupWhitening        Σ^(−½) by five steps of Newton's iteration, as published: not quite white where Σ is ill-conditioned
    GroupWhiteningZCA     Σ^(−½) by eigenvalues, exactly; ONNX has no operator for that, so export gw
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anynorm import kernels
from anynorm.core.moments import table_dtype
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params
from anynorm.layers.registered import RegisteredNorm
from anynorm.layers.state import CustomNorm

_PAPER = "Huang et al. 2021, in xbn sec. 5.2.2"


class Whitening(CustomNorm, RegisteredNorm):
    """Whitens the groups of channels of each sample."""

    formula = ("Σ = cov of the g groups + ε I", "x̂ = Σ^(−½) (x − μ[g])", "y = γ x̂ + β")

    def widened(self, x: Tensor) -> Tensor:
        """Choose what to compute in: x's own precision, which is no half type any more."""
        return x

    def root(self, cov: Tensor) -> Tensor:
        """Give Σ^(−½) of matrices (n, g, g)."""
        raise NotImplementedError

    def _pass(self, task: ForwardSpec, x: Tensor, owned: Params, given: Buffers) -> tuple[Tensor, BatchStats]:
        cut = task.fitted.cuts[0]
        n, c = x.shape[:2]
        values = self.widened(kernels.working(x))
        means = cut.pool_rows(kernels.moments(values, 1)).mean  # (n, g, 1)
        groups = means.shape[1]
        size = c // groups * math.prod(x.shape[2:])
        shift = means.detach().to(values.dtype)  # the mean is rounded to x's precision; the rest of it is small
        centred = values.reshape(n, groups, size) - shift - (means - shift).to(values.dtype)
        with torch.autocast(x.device.type if torch.amp.is_autocast_available(x.device.type) else "cpu", enabled=False):
            cov = centred @ centred.transpose(1, 2) / size
            cov = cov + task.eps * torch.eye(groups, dtype=cov.dtype, device=cov.device)
            white = (self.root(cov) @ centred).reshape(x.shape)
        if owned.weight is not None and owned.bias is not None:
            gamma, beta = (table.to(white.dtype).reshape(1, c, *(1 for _ in x.shape[2:])) for table in (owned.weight, owned.bias))
            white = white * gamma + beta
        return _laid_like(white.to(x.dtype), x), BatchStats([None])


class GroupWhitening(Whitening):
    """Groups of channels of each sample decorrelated, by Newton's iteration."""

    name, alias_of, paper = "gw", "[*,{num_groups},1]", _PAPER
    arguments = {"num_groups": 32}
    example = "gw:32"
    STEPS = 5

    def root(self, cov: Tensor) -> Tensor:
        """Iterate P ← (3 P − P³ Σ/tr Σ)/2 from the identity."""
        trace = cov.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        scaled = cov / trace
        p = torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device).expand_as(cov)
        for _ in range(self.STEPS):
            p = (3 * p - p @ p @ p @ scaled) / 2
        root: Tensor = p * trace.rsqrt()
        return root


class GroupWhiteningZCA(Whitening):
    """Groups of channels of each sample decorrelated, exactly."""

    name, alias_of, paper = "gwzca", "[*,{num_groups},1]", _PAPER
    arguments = {"num_groups": 32}
    example = "gwzca:32"

    def widened(self, x: Tensor) -> Tensor:
        """Choose double: with fewer values than groups Σ is singular but for ε, which float32 cannot see beside it."""
        return x.to(table_dtype(x))

    def root(self, cov: Tensor) -> Tensor:
        """Take eigenvalues, and let gradients come from W Σ W = 1, which W solves.

        Eigenvectors have no derivative where eigenvalues coincide; the root has. A step of Newton's method on W Σ W − 1, with the
        derivative taken at the solution, leaves the value and makes the next derivative right: two steps, two orders.
        """
        values, vectors = torch.linalg.eigh(cov.detach())
        roots = values.clamp(min=torch.finfo(values.dtype).tiny).sqrt()
        w: Tensor = vectors @ (vectors / roots[..., None, :]).transpose(-1, -2)
        pairs = roots[..., :, None] + roots[..., None, :]
        identity = torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)
        for _ in range(2):
            off = vectors.transpose(-1, -2) @ (w @ cov @ w - identity) @ vectors
            w = w - vectors @ (off / pairs) @ vectors.transpose(-1, -2)
        return w


def _laid_like(y: Tensor, x: Tensor) -> Tensor:
    """Give y the memory format of x; vmap has none that it tells of."""
    if not torch.compiler.is_compiling() and torch._C._functorch.is_functorch_wrapped_tensor(x):
        return y
    for dims, last in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.dim() == dims and x.is_contiguous(memory_format=last) and not x.is_contiguous():
            return y.contiguous(memory_format=last)
    return y
