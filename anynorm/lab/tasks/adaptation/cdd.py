"""Contrastive domain discrepancy (Kang et al. 2019, eqs. 3 to 6): classes of two domains, pulled together and pushed apart.

    D_ij = mean k(s, s') over class i of the source + mean k(t, t') over class j of the target − 2 mean k(s, t)      (squared MMD)
    k(x, y) = Σ_q exp(−‖x − y‖² / (γ_ij 2^q)),  q = −2 … 2
    γ_ij = mean ‖x − y‖² over all pairs x ≠ y of both sets together, without gradient

    CDD = mean_i D_ii − mean_{i≠j} D_ij        summed over layers: features and class probabilities

The paper takes both means over the classes; each batch has M of all K. Its text can be read as means over the M sampled classes
(`cdd_of_sampled_classes`); the authors' code divides by K and K (K − 1) instead (`cdd_of_all_classes`), which makes the loss
smaller by M/K and M (M − 1) / (K (K − 1)). Both are the same if every class is sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anynorm.errors import DataError

NUM_KERNELS, FACTOR = 5, 2.0
MIN_BANDWIDTH = 1e-12


def cdd_of_sampled_classes(source: Sequence[Tensor], target: Sequence[Tensor]) -> Tensor:
    """Return CDD with means over the classes of the batch.

    Args:
        source: outputs of each layer for the source, (classes, samples, d).
        target: outputs of each layer for the target, with the classes in the same order.

    Raises:
        DataError: if there are fewer than 2 classes, or the shapes do not correspond.
    """
    within, between = _sums(source, target)
    count = len(source[0])
    return within / count - between / (count * (count - 1))


def cdd_of_all_classes(source: Sequence[Tensor], target: Sequence[Tensor], num_classes: int) -> Tensor:
    """Return CDD divided by the number of all classes, as in the authors' code.

    Args:
        source: as in `cdd_of_sampled_classes`.
        target: as `source`.
        num_classes: the number of classes of the data.

    Raises:
        DataError: as for `cdd_of_sampled_classes`.
    """
    within, between = _sums(source, target)
    return within / num_classes - between / (num_classes * (num_classes - 1))


def class_discrepancies(source: Tensor, target: Tensor) -> Tensor:
    """Return the squared MMD between every class of the source and every class of the target, (M, M).

    Args:
        source: outputs of a layer for the source, (M, samples, d).
        target: outputs of the same layer for the target, (M, samples, d).
    """
    within_source, within_target = squared_distances(source, source), squared_distances(target, target)  # (M, n, n)
    across = squared_distances(source[:, None], target[None])  # (M, M, n, m)
    n, m = source.shape[1], target.shape[1]
    total = within_source.sum((1, 2))[:, None] + within_target.sum((1, 2))[None] + 2 * across.sum((2, 3))
    bandwidths = (total / ((n + m) * (n + m - 1))).detach().clamp(min=MIN_BANDWIDTH)[..., None, None]
    return (
        gaussian_kernels(within_source[:, None], bandwidths).mean((2, 3))
        + gaussian_kernels(within_target[None], bandwidths).mean((2, 3))
        - 2 * gaussian_kernels(across, bandwidths).mean((2, 3))
    )


def gaussian_kernels(distances: Tensor, bandwidths: Tensor) -> Tensor:
    """Return the sum of exp(−distances / (bandwidths 2^q)) over q = −2 … 2."""
    exponents = range(-(NUM_KERNELS // 2), NUM_KERNELS - NUM_KERNELS // 2)
    return torch.stack([(-distances / (bandwidths * FACTOR**q)).exp() for q in exponents]).sum(0)


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Return ‖x_i − y_j‖² of all pairs, (…, n, m) for (…, n, d) and (…, m, d)."""
    return (x[..., :, None, :] - y[..., None, :, :]).square().sum(-1)


def _sums(source: Sequence[Tensor], target: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the sums of D_ii and of D_ij, i ≠ j, over classes and layers."""
    for a, b in zip(source, target, strict=True):
        if a.dim() != 3 or b.dim() != 3 or len(a) != len(b) or a.shape[2] != b.shape[2]:
            raise DataError(
                "layers must be (classes, samples, d), with the same classes and d in both domains; "
                f"got {tuple(a.shape)} and {tuple(b.shape)}."
            )
        if len(a) < 2:
            raise DataError(f"CDD contrasts classes: a batch must have at least 2 classes; got {len(a)}.")
    matrices = torch.stack([class_discrepancies(a, b) for a, b in zip(source, target, strict=True)]).sum(0)
    within = matrices.diagonal().sum()
    return within, matrices.sum() - within
