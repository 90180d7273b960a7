"""The norms beyond the algebra, naive and in float64, sample by sample. Imports nothing of the library."""

from __future__ import annotations

import math

import torch
from torch import Tensor

EPS = 1e-5


def laid(vector: Tensor, x: Tensor) -> Tensor:
    """A number a channel, over the axes of x."""
    return vector.reshape(1, -1, *(1 for _ in x.shape[2:]))


def mode_statistics(x: Tensor, gates: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Mean and variance of each mode: every value of a sample weighs as its sample's share."""
    found = []
    for k in range(gates.shape[1]):
        share = gates[:, k].reshape(-1, 1, *(1 for _ in x.shape[2:])).expand_as(x)
        axes = [0, *range(2, x.dim())]
        total = share.sum(axes)
        mean = (share * x).sum(axes) / total
        found.append((mean, (share * (x - laid(mean, x)) ** 2).sum(axes) / total))
    return found


def gates_of(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Softmax of an affine function of the spatial mean."""
    scores = torch.stack([x[n].reshape(x.shape[1], -1).mean(1) @ weight.T + bias for n in range(len(x))])
    return scores.exp() / scores.exp().sum(1, keepdim=True)


def modenorm(x: Tensor, gates: Tensor, statistics: list[tuple[Tensor, Tensor]], affine: tuple[Tensor, Tensor]) -> Tensor:
    """γ Σ_k g_nk (x_n − μ_k)/√(σ²_k + ε) + β."""
    y = torch.zeros_like(x)
    for k, (mean, var) in enumerate(statistics):
        share = gates[:, k].reshape(-1, 1, *(1 for _ in x.shape[2:]))
        y = y + share * (x - laid(mean, x)) / (laid(var, x) + EPS).sqrt()
    return laid(affine[0], x) * y + laid(affine[1], x)


def ilm(x: Tensor, groups: int, keys: list[int], weights: list[Tensor], affine: tuple[Tensor, Tensor]) -> Tensor:
    """GN of `groups` (IN: as many as channels), with the affine predicted from the moments of key groups."""
    encoder, scale, shift = weights
    samples = []
    for sample in x:
        key_mean, key_var = [], []
        for key in range(max(keys) + 1):
            values = torch.cat([sample[c].flatten() for c in range(len(keys)) if keys[c] == key])
            key_mean.append(values.mean())
            key_var.append(((values - values.mean()) ** 2).mean())
        gamma = torch.sigmoid(scale @ torch.relu(encoder @ torch.stack(key_var)))
        beta = torch.tanh(shift @ torch.relu(encoder @ torch.stack(key_mean)))
        rows = []
        for c in range(len(sample)):
            size = len(sample) // groups
            part = sample[c // size * size : (c // size + 1) * size]
            hat = (sample[c] - part.mean()) / (((part - part.mean()) ** 2).mean() + EPS).sqrt()
            rows.append((affine[0][c] + gamma[keys[c]]) * hat + affine[1][c] + beta[keys[c]])
        samples.append(torch.stack(rows))
    return torch.stack(samples)


def renorm(x: Tensor, kept: tuple[Tensor, Tensor], limits: tuple[float, float], affine: tuple[Tensor, Tensor]) -> Tensor:
    """Ioffe's r and d, held constant."""
    axes = [0, *range(2, x.dim())]
    mean = x.mean(axes)
    var = ((x - laid(mean, x)) ** 2).mean(axes)
    std, kept_std = (var + EPS).sqrt(), (kept[1] + EPS).sqrt()
    r = (std / kept_std).clamp(1 / limits[0], limits[0]).detach()
    d = ((mean - kept[0]) / kept_std).clamp(-limits[1], limits[1]).detach()
    hat = (x - laid(mean, x)) / laid(std, x)
    return laid(affine[0], x) * (laid(r, x) * hat + laid(d, x)) + laid(affine[1], x)


def whiten(x: Tensor, groups: int, affine: tuple[Tensor, Tensor], steps: int = 0) -> Tensor:
    """Whiten the groups of each sample: by `steps` of Newton's iteration, or by a singular value decomposition where 0."""
    samples = []
    for sample in x:
        rows = sample.reshape(groups, -1)
        rows = rows - rows.mean(1, keepdim=True)
        cov = rows @ rows.T / rows.shape[1] + EPS * torch.eye(groups, dtype=x.dtype)
        if steps:
            root = torch.eye(groups, dtype=x.dtype)
            for _ in range(steps):
                root = 1.5 * root - 0.5 * torch.linalg.matrix_power(root, 3) @ (cov / torch.trace(cov))
            root = root / torch.trace(cov).sqrt()
        else:
            u, s, _ = torch.linalg.svd(cov)
            root = u @ torch.diag(s**-0.5) @ u.T
        samples.append((root @ rows).reshape(sample.shape))
    return laid(affine[0], x) * torch.stack(samples) + laid(affine[1], x)


def nearest_on_simplex(point: list[float], radius: float, *, fine: int = 400) -> list[float]:
    """The point of the simplex of three corners nearest to `point`, at least `radius` from its centre, by trying all."""
    best, nearest = math.inf, [1.0, 0.0, 0.0]
    for i in range(fine + 1):
        for j in range(fine + 1 - i):
            w = [i / fine, j / fine, (fine - i - j) / fine]
            if math.dist(w, [1 / 3] * 3) >= radius - 2 / fine and math.dist(w, point) < best:
                best, nearest = math.dist(w, point), w
    return nearest


def kalman_estimates(inputs, transitions, gain):
    """Return the estimated mean and covariance matrix of each layer of a chain, by loops over channels.

    `inputs` are the x of the layers, (n, c, …); `transitions` the matrices between neighbors, one fewer.
    """
    estimates: list[tuple[torch.Tensor, torch.Tensor]] = []
    for k, x in enumerate(inputs):
        rows = [x[:, channel].reshape(-1) for channel in range(x.shape[1])]
        mean = torch.stack([row.mean() for row in rows])
        cov = torch.stack([torch.stack([((a - a.mean()) * (b - b.mean())).mean() for b in rows]) for a in rows])
        if k:
            old_mean, old_cov = estimates[-1]
            matrix, channels = transitions[k - 1], range(len(rows))
            prior = torch.stack([sum(matrix[i, j] * old_mean[j] for j in range(len(old_mean))) for i in channels])
            prior_cov = torch.einsum("ij,jk,lk->il", matrix, old_cov, matrix)
            difference = mean - prior
            weight = 1 - gain
            spread = difference[:, None] * difference[None, :]
            mean = weight * prior + gain * mean
            cov = weight * prior_cov + gain * cov + weight * gain * spread
        estimates.append((mean, cov))
    return estimates


def kalman_norm(x, estimate, affine, eps=1e-5):
    """Normalize x by an estimate."""
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    mean, cov = estimate
    weight, bias = affine
    x = (x - mean.reshape(shape)) / (torch.diag(cov) + eps).sqrt().reshape(shape)
    return x * weight.reshape(shape) + bias.reshape(shape)


def dynamic_tanh(x: Tensor, alpha: Tensor, affine: tuple[Tensor, Tensor]) -> Tensor:
    """γ tanh(α x) + β, by exponentials."""
    return laid(affine[0], x) * (1 - 2 / ((2 * alpha * x).exp() + 1)) + laid(affine[1], x)


def dynamic_erf(x: Tensor, alpha: Tensor, shift: Tensor, affine: tuple[Tensor, Tensor]) -> Tensor:
    """γ erf(α x + s) + β, by the distribution function of the normal distribution."""
    probability: Tensor = torch.special.ndtr((alpha * x + shift) * math.sqrt(2))
    return laid(affine[0], x) * (2 * probability - 1) + laid(affine[1], x)
