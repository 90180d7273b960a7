"""Everything between the passes, on tables of kinds × columns numbers, forwards and backwards in closed form.

A column is one (channel, strip); samples that are treated alike are of one kind: all of them where statistics and affine are
shared, each class or domain, or each sample. With row moments m, v, and for each cut i its parts' statistics M, V (from the rows,
or kept):

    μ = Σ wᵢ Mᵢ      σ² = Σ w'ᵢ Vᵢ      r = 1/sqrt(σ² + ε)      γ, β: shared, then own     a = γ r     y = a (x − μ) + β

and from g = Σ dy, t = Σ dy (x − μ) of each kind and column:

    dβ = g      dγ = r t      dμ = −a g      dσ² = −½ γ r³ t      dMᵢ = Σ wᵢ dμ      dVᵢ = Σ w'ᵢ dσ²
    dx = a dy + Σᵢ (dMᵢ + 2 dVᵢ (x − Mᵢ)) / countᵢ          over the cuts that look at the batch

`places` and `affine` come as plain tuples in the order of their classes in plan: numba's cache on disk would otherwise hold the
classes by name, and a later version that has moved one could not read it.
"""

from __future__ import annotations

import numpy as np

from anynorm.kernels._numba.native import kernel

SOFT, HARD, READY = range(3)
"""How weights come from λ."""


@kernel
def lay(row, table, base, columns):
    """Return the part's entry of each column; `columns` holds the size of contiguous parts (or 0), then each column's part."""
    block, entries = columns[0], table[base:]
    if block == 1:
        for j in range(row.shape[0]):
            row[j] = entries[j]
    elif block > 1:
        grid = row.reshape(-1, block)
        for g in range(grid.shape[0]):
            value = entries[g]
            for j in range(block):
                grid[g, j] = value
    else:
        for j in range(row.shape[0]):
            row[j] = entries[columns[1 + j]]


@kernel
def _sum(table, base, columns, row, weight):
    """Add each column, weighed, to its part's entry."""
    block, entries = columns[0], table[base:]
    if block == 1:
        for j in range(row.shape[0]):
            entries[j] += weight * row[j]
    elif block > 1:
        grid = row.reshape(-1, block)
        for g in range(grid.shape[0]):
            total = 0.0
            for j in range(block):
                total += grid[g, j]
            entries[g] += weight * total
    else:
        for j in range(row.shape[0]):
            entries[columns[1 + j]] += weight * row[j]


@kernel
def count(places, kind, members):
    """Count the rows behind each statistic."""
    where, columns_of, offset, width, looks, mean_cuts, var_cuts = places
    members[:] = 0.0
    for i in range(width.shape[0]):
        block = (columns_of.shape[1] - 1) // width[i]
        for n in range(kind.shape[0]):
            entries = members[offset[i] + where[i, kind[n]] * width[i] :]
            for g in range(width[i]):
                entries[g] += block


@kernel
def pool(places, kind, members, mean, var, M, V, laid):
    """Pool rows by each cut that looks at the batch: law of total variance."""
    where, columns_of, offset, width, looks, mean_cuts, var_cuts = places
    samples, size = mean.shape
    for i in range(width.shape[0]):
        lo, hi, columns = offset[i], offset[i + 1], columns_of[i]
        if not looks[i]:
            continue
        own = hi - lo == samples * size and columns[0] == 1  # whether each row is a part
        for n in range(samples):
            own = own and where[i, kind[n]] == n  # as many domains as samples are none
        if own:
            M[lo:hi] = mean.reshape(-1)
            V[lo:hi] = var.reshape(-1)
            continue
        M[lo:hi] = 0.0
        V[lo:hi] = 0.0
        for n in range(samples):
            _sum(M, lo + where[i, kind[n]] * width[i], columns, mean[n], 1.0)
        for p in range(lo, hi):
            M[p] /= max(members[p], 1.0)
        for n in range(samples):
            base = lo + where[i, kind[n]] * width[i]
            lay(laid, M, base, columns)
            m, v = mean[n], var[n]
            for j in range(size):
                d = m[j] - laid[j]
                laid[j] = v[j] + d * d
            _sum(V, base, columns, laid, 1.0)
        for p in range(lo, hi):
            V[p] /= max(members[p], 1.0)


@kernel
def soften(logits, how, weights):
    """Turn λ (groups, cuts) into weights: a softmax, or a one-hot of the first largest; weights that are ready stay."""
    groups, cuts = logits.shape
    if how == READY:
        weights[:] = logits
        return
    for g in range(groups):
        top = 0
        for i in range(cuts):
            if logits[g, i] > logits[g, top] or (np.isnan(logits[g, i]) and not np.isnan(logits[g, top])):
                top = i
        total = 0.0
        for i in range(cuts):
            chosen = 1.0 if i == top else 0.0
            weights[g, i] = chosen if how == HARD else np.exp(np.float64(logits[g, i]) - np.float64(logits[g, top]))
            total += weights[g, i]
        for i in range(cuts):
            weights[g, i] /= total


@kernel
def _mix(places, side, s, weights, table, mixed, laid):
    """Mix one side's statistics for a kind; a weight of 0 lets nothing through, not even NaN."""
    where, columns_of, offset, width, looks, mean_cuts, var_cuts = places
    if side.shape[0] == 1:
        i = side[0]
        lay(mixed, table, offset[i] + where[i, s] * width[i], columns_of[i])
        return
    groups = weights.shape[0]
    mixed[:] = 0.0
    by_group, laid_by_group = mixed.reshape(groups, -1), laid.reshape(groups, -1)
    for c in range(side.shape[0]):
        i = side[c]
        lay(laid, table, offset[i] + where[i, s] * width[i], columns_of[i])
        for g in range(groups):
            w = weights[g, c]
            if w != 0.0:
                for j in range(by_group.shape[1]):
                    by_group[g, j] += w * laid_by_group[g, j]


@kernel
def _invert(places, side, s, weights, table, eps, r, laid):
    """Return 1/sqrt(σ² + ε) of each column; where one cut alone has the variance it is taken of the parts, which are fewer."""
    where, columns_of, offset, width, looks, mean_cuts, var_cuts = places
    if side.shape[0] == 1 and columns_of[side[0], 0] > 1:
        i = side[0]
        grid, entries = r.reshape(width[i], -1), table[offset[i] + where[i, s] * width[i] :]
        for g in range(width[i]):
            value = np.float32(1) / np.sqrt(np.float32(entries[g] + eps))
            for j in range(grid.shape[1]):
                grid[g, j] = value
        return
    _mix(places, side, s, weights, table, r, laid)
    for j in range(r.shape[0]):
        r[j] = np.float32(1) / np.sqrt(
            np.float32(r[j] + eps)
        )  # its digits end in float32 anyway, and double takes four times as long


@kernel
def coefficients(places, affine, M, V, eps, k, a, b, work):
    """Return k, a, b of y = a (x − k) + b for each kind, in float32: k is μ rounded, and b pays for it."""
    weights, gamma, beta, own_gamma, own_beta, label, channel_of = affine
    mean_cuts, var_cuts = places[5], places[6]
    columns = k.shape[1]
    mu, r, laid, og, ob = work[0], work[1], work[2], work[3], work[4]
    og[:] = 1.0
    ob[:] = 0.0
    for s in range(k.shape[0]):
        _mix(places, mean_cuts, s, weights[0], M, mu, laid)
        _invert(places, var_cuts, s, weights[1], V, eps, r, laid)
        if own_gamma.shape[0]:
            lay(og, own_gamma[label[s]], 0, channel_of)
            lay(ob, own_beta[label[s]], 0, channel_of)
        ks, as_, bs = k[s], a[s], b[s]
        for j in range(columns):
            scale = og[j] * gamma[j] * r[j]
            centre = np.float32(mu[j])
            ks[j] = centre
            as_[j] = np.float32(scale)
            bs[j] = np.float32(og[j] * beta[j] + ob[j] - scale * (mu[j] - np.float64(centre)))


@kernel
def gradients(places, affine, statistics, members, length, eps, g1, g2, k, a, p, q, d_statistics, d_affine, work):
    """Return a, p, q of dx = a dy + p (x − k) + q, with k as it is, and the gradients of weights and affine."""
    where, columns_of, offset, width, looks, mean_cuts, var_cuts = places
    weights, gamma, beta, own_gamma, own_beta, label, channel_of = affine
    kinds, columns = k.shape
    M, V = statistics[0], statistics[1]
    dM, dV = d_statistics[0], d_statistics[1]
    d_weights, d_gamma, d_beta, d_own_gamma, d_own_beta = d_affine
    mu, r, laid, og, dgamma, dmu, dsigma = work[0], work[1], work[2], work[3], work[4], work[5], work[6]
    og[:] = 1.0
    for s in range(kinds):
        _mix(places, mean_cuts, s, weights[0], M, mu, laid)
        _invert(places, var_cuts, s, weights[1], V, eps, r, laid)
        g, gx, ks, as_ = g1[s], g2[s], k[s], a[s]
        if own_gamma.shape[0]:
            lay(og, own_gamma[label[s]], 0, channel_of)
        for j in range(columns):
            t = gx[j] + (np.float64(ks[j]) - mu[j]) * g[j]
            scale = og[j] * gamma[j] * r[j]
            dgamma[j] = r[j] * t
            dmu[j] = -scale * g[j]
            dsigma[j] = -0.5 * scale * r[j] * dgamma[j]
            as_[j] = np.float32(scale)
        if own_gamma.shape[0]:
            for j in range(columns):
                laid[j] = dgamma[j] * gamma[j] + g[j] * beta[j]
            _sum(d_own_gamma[label[s]], 0, channel_of, laid, 1.0)
            _sum(d_own_beta[label[s]], 0, channel_of, g, 1.0)
            for j in range(columns):
                d_gamma[j] += dgamma[j] * og[j]
                d_beta[j] += g[j] * og[j]
        else:
            for j in range(columns):
                d_gamma[j] += dgamma[j]
                d_beta[j] += g[j]
        _back(places, mean_cuts, s, weights[0], dmu, M, dM, d_weights[0], laid)
        _back(places, var_cuts, s, weights[1], dsigma, V, dV, d_weights[1], laid)
    for i in range(dM.shape[0]):
        dM[i] /= max(members[i], 1.0) * length
        dV[i] *= 2.0 / (max(members[i], 1.0) * length)
    for s in range(kinds):
        dmu[:] = 0.0
        dsigma[:] = 0.0
        ks, ps, qs = k[s], p[s], q[s]
        for i in range(width.shape[0]):
            if looks[i]:
                base = offset[i] + where[i, s] * width[i]
                lay(laid, dM, base, columns_of[i])
                for j in range(columns):
                    dmu[j] += laid[j]
                lay(laid, dV, base, columns_of[i])
                lay(mu, M, base, columns_of[i])
                for j in range(columns):
                    dsigma[j] += laid[j]
                    dmu[j] += laid[j] * (np.float64(ks[j]) - mu[j])
        for j in range(columns):
            ps[j] = np.float32(dsigma[j])
            qs[j] = np.float32(dmu[j])


@kernel
def _back(places, side, s, weights, upstream, table, d_table, d_weights, laid):
    """Send the gradient of a mixed row back to the cuts' statistics and weights."""
    where, columns_of, offset, width, looks, mean_cuts, var_cuts = places
    groups = weights.shape[0]
    up, by_group = upstream.reshape(groups, -1), laid.reshape(groups, -1)
    for c in range(side.shape[0]):
        i = side[c]
        base = offset[i] + where[i, s] * width[i]
        if side.shape[0] == 1:
            _sum(d_table, base, columns_of[i], upstream, 1.0)
            continue
        lay(laid, table, base, columns_of[i])
        for g in range(groups):
            total = 0.0
            for j in range(up.shape[1]):
                total += up[g, j] * by_group[g, j]
            d_weights[g, c] += total
        if groups == 1:
            _sum(d_table, base, columns_of[i], upstream, weights[0, c])
            continue
        for g in range(groups):
            for j in range(up.shape[1]):
                by_group[g, j] = weights[g, c] * up[g, j]
        _sum(d_table, base, columns_of[i], laid, 1.0)


@kernel
def soften_back(weights, d_weights, how, out):
    """Turn gradients of weights into those of λ: dλ = w (dw − Σ w dw); a one-hot has none."""
    groups, cuts = weights.shape
    if how == READY:
        out[:] = d_weights
        return
    for g in range(groups):
        inner = 0.0
        for i in range(cuts):
            inner += weights[g, i] * d_weights[g, i]
        for i in range(cuts):
            out[g, i] = 0.0 if how == HARD else weights[g, i] * (d_weights[g, i] - inner)
