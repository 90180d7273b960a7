"""Everything between the passes, on tables of n × columns numbers, forwards and backwards in closed form.

A column is one (channel, strip). With row moments m, v, and for each cut k its parts' statistics M, V (from the rows, or kept):

    μ = Σ wₖ Mₖ      σ² = Σ w'ₖ Vₖ      r = 1/sqrt(σ² + ε)      γ, β: shared, then own     a = γ r     y = a (x − μ) + β

and from g₁ = Σ dy, t = Σ dy (x − μ) of each row:

    dβ = g₁      dγ = r t      dμ = −a g₁      dσ² = −½ γ r³ t      dMₖ = Σ wₖ dμ      dVₖ = Σ w'ₖ dσ²
    dx = a dy + Σₖ (dMₖ + 2 dVₖ (x − Mₖ)) / countₖ          over the cuts that look at the batch

`plan`, `affine` and `grads` come as plain tuples in the order of their classes in work: numba's cache on disk would otherwise
hold the classes by name, and a later version that has moved one could not read it.
"""

from __future__ import annotations

import numpy as np

from anynorm.kernels.passes import kernel


@kernel
def _lay(row, table, base, columns):
    """Give each column its part's entry; `columns` holds the size of contiguous parts (0: none such), then each column's part."""
    block, part = columns[0], columns[1:]
    if block == 1:
        for j in range(row.shape[0]):
            row[j] = table[base + j]
    elif block > 1:
        for g in range(row.shape[0] // block):
            value = table[base + g]
            for j in range(g * block, (g + 1) * block):
                row[j] = value
    else:
        for j in range(row.shape[0]):
            row[j] = table[base + part[j]]


@kernel
def _sum(table, base, columns, row):
    """Add each column to its part's entry."""
    block, part = columns[0], columns[1:]
    if block == 1:
        for j in range(row.shape[0]):
            table[base + j] += row[j]
    elif block > 1:
        for g in range(row.shape[0] // block):
            total = 0.0
            for j in range(g * block, (g + 1) * block):
                total += row[j]
            table[base + g] += total
    else:
        for j in range(row.shape[0]):
            table[base + part[j]] += row[j]


@kernel
def pool(plan, mean, var, M, V):
    """Pool rows by each cut that looks at the batch: law of total variance."""
    samples, columns_of, offset, width, members, looks, on_mean, on_var, wm, wv, length = plan
    laid = np.empty(mean.shape[1])
    for k in range(width.shape[0]):
        if not looks[k]:
            continue
        lo, hi, columns = offset[k], offset[k + 1], columns_of[k]
        for i in range(lo, hi):
            M[i] = 0.0
            V[i] = 0.0
        for n in range(mean.shape[0]):
            _sum(M, lo + samples[k, n] * width[k], columns, mean[n])
        for i in range(lo, hi):
            M[i] /= max(members[i], 1.0)
        for n in range(mean.shape[0]):
            base = lo + samples[k, n] * width[k]
            _lay(laid, M, base, columns)
            for j in range(laid.shape[0]):
                d = mean[n, j] - laid[j]
                laid[j] = var[n, j] + d * d
            _sum(V, base, columns, laid)
        for i in range(lo, hi):
            V[i] /= max(members[i], 1.0)


@kernel
def _add(out, weights, row):
    """Add a weighed row; weights are one for all columns, or one each, and 0 lets nothing through, not even NaN."""
    if weights.shape[0] == 1:
        if weights[0] != 0.0:
            for j in range(out.shape[0]):
                out[j] += weights[0] * row[j]
    else:
        for j in range(out.shape[0]):
            if weights[j] != 0.0:
                out[j] += weights[j] * row[j]


@kernel
def _mix(plan, n, M, V, mu, sigma, laid):
    """Mix the statistics of one sample: μ and σ² of each column."""
    samples, columns_of, offset, width, members, looks, on_mean, on_var, wm, wv, length = plan
    mu[:] = 0.0
    sigma[:] = 0.0
    for k in range(width.shape[0]):
        base = offset[k] + samples[k, n] * width[k]
        if on_mean[k]:
            _lay(laid, M, base, columns_of[k])
            _add(mu, wm[k], laid)
        if on_var[k]:
            _lay(laid, V, base, columns_of[k])
            _add(sigma, wv[k], laid)


@kernel
def coefficients(plan, affine, M, V, k, a, b):
    """Give k, a, b of y = a (x − k) + b for each sample and column, in float32: k is μ rounded, and b pays for it."""
    gamma_of, beta_of, own_gamma, own_beta, labels, eps = affine
    columns = k.shape[1]
    mu, sigma, laid = np.empty(columns), np.empty(columns), np.empty(columns)
    for n in range(k.shape[0]):
        _mix(plan, n, M, V, mu, sigma, laid)
        own = labels[n]
        for j in range(columns):
            gamma = own_gamma[own, j] * gamma_of[j]
            beta = own_gamma[own, j] * beta_of[j] + own_beta[own, j]
            scale = gamma / np.sqrt(sigma[j] + eps)
            centre = np.float32(mu[j])
            k[n, j] = centre
            a[n, j] = scale
            b[n, j] = beta - scale * (mu[j] - centre)


@kernel
def gradients(plan, affine, M, V, mean, g1, g2, k, a, p, q, dwm, dwv, grads):
    """Give k, a, p, q of dx = a dy + p (x − k) + q, and the gradients of weights and affine."""
    samples, columns_of, offset, width, members, looks, on_mean, on_var, wm, wv, length = plan
    gamma_of, beta_of, own_gamma, own_beta, labels, eps = affine
    d_gamma, d_beta, d_own_gamma, d_own_beta = grads
    columns = k.shape[1]
    mu, sigma, laid, t = np.empty(columns), np.empty(columns), np.empty(columns), np.empty(columns)
    dM, dV = np.zeros(M.shape[0]), np.zeros(V.shape[0])
    for n in range(k.shape[0]):
        _mix(plan, n, M, V, mu, sigma, laid)
        own = labels[n]
        for j in range(columns):
            gamma = own_gamma[own, j] * gamma_of[j]
            r = 1.0 / np.sqrt(sigma[j] + eps)
            up = g2[n, j] + (mean[n, j] - mu[j]) * g1[n, j]
            dgamma = r * up
            d_own_gamma[own, j] += dgamma * gamma_of[j] + g1[n, j] * beta_of[j]
            d_own_beta[own, j] += g1[n, j]
            d_gamma[j] += dgamma * own_gamma[own, j]
            d_beta[j] += g1[n, j] * own_gamma[own, j]
            a[n, j] = gamma * r
            mu[j] = -gamma * r * g1[n, j]
            sigma[j] = -0.5 * gamma * r * r * r * up
        for i in range(width.shape[0]):
            base = offset[i] + samples[i, n] * width[i]
            if on_mean[i]:
                _back(dM, dwm[i], base, columns_of[i], wm[i], mu, M, laid, t)
            if on_var[i]:
                _back(dV, dwv[i], base, columns_of[i], wv[i], sigma, V, laid, t)
    for n in range(k.shape[0]):
        mu[:] = 0.0
        sigma[:] = 0.0
        for i in range(width.shape[0]):
            if looks[i]:
                base = offset[i] + samples[i, n] * width[i]
                _lay(laid, members, base, columns_of[i])
                for j in range(columns):
                    t[j] = 1.0 / (laid[j] * length)
                _lay(laid, dM, base, columns_of[i])
                for j in range(columns):
                    mu[j] += laid[j] * t[j]
                _lay(laid, dV, base, columns_of[i])
                for j in range(columns):
                    t[j] *= 2.0 * laid[j]
                    sigma[j] += t[j]
                _lay(laid, M, base, columns_of[i])
                for j in range(columns):
                    mu[j] += t[j] * (mean[n, j] - laid[j])
        for j in range(columns):
            centre = np.float32(mean[n, j])
            k[n, j] = centre
            p[n, j] = sigma[j]
            q[n, j] = mu[j] + sigma[j] * (centre - mean[n, j])


@kernel
def _back(dtable, dweights, base, columns, weights, upstream, table, laid, share):
    """Send the gradient of a mixed row back to one cut's statistics and weights."""
    _lay(laid, table, base, columns)
    if weights.shape[0] == 1:
        total = 0.0
        for j in range(laid.shape[0]):
            total += upstream[j] * laid[j]
            share[j] = weights[0] * upstream[j]
        dweights[0] += total
    else:
        for j in range(laid.shape[0]):
            dweights[j] += upstream[j] * laid[j]
            share[j] = weights[j] * upstream[j]
    _sum(dtable, base, columns, share)
