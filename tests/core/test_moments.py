"""Pooling gives the moments of the union, whatever is united."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from anynorm import kernels
from anynorm.core.moments import Moments, pool, pool_samples, pool_stacked
from tests.helpers import data, same

SIZES = st.sampled_from([1, 2, 3, 4, 6])


@given(st.tuples(SIZES, SIZES, SIZES), st.data())
def test_pooling_by_any_parts_gives_the_moments_of_each_part(sizes, draw):
    parts = tuple(draw.draw(st.sampled_from([k for k in range(1, size + 1) if size % k == 0])) for size in sizes)
    n, c, t = sizes
    x = data(n, c, t * 5, dtype=torch.float64)
    pooled = pool(kernels.moments(x, t), parts)
    split = x.reshape(parts[0], n // parts[0], parts[1], c // parts[1], parts[2], -1).permute(0, 2, 4, 1, 3, 5).flatten(3)
    same(pooled.mean, split.mean(-1))
    same(pooled.var, split.var(-1, correction=0))
    same(pooled.count.expand(parts), torch.full(parts, float(split.shape[-1]), dtype=torch.float64))
    if split.shape[-1] > 1:
        same(pooled.unbiased_var(), split.var(-1))


@given(st.lists(st.integers(0, 2), min_size=1, max_size=8))
def test_pooling_by_labels_gives_the_moments_of_each_domain_and_nothing_for_absent_ones(labels):
    x = data(len(labels), 3, 5, dtype=torch.float64)
    index = torch.tensor(labels)
    pooled = pool_samples(kernels.moments(x, 1), index, 3)
    for domain in range(3):
        own = x[index == domain]
        same(pooled.count[domain, :, 0], torch.full((3,), float(len(own) * 5), dtype=torch.float64))
        if len(own):
            same(pooled.mean[domain, :, 0], own.mean((0, 2)))
            same(pooled.var[domain, :, 0], own.var((0, 2), correction=0))
        else:
            same(pooled.mean[domain], torch.zeros_like(pooled.mean[domain]))


def test_members_of_unequal_size_and_empty_ones_pool_to_the_union():
    batches = [data(k, 4, 6, seed=k, dtype=torch.float64) for k in (3, 0, 1, 5)]
    tables = [pool_samples(kernels.moments(x, 1), None, 0) for x in batches]
    stacked = Moments(*(torch.stack([getattr(t, name).expand(1, 4, 1) for t in tables]) for name in Moments._fields))
    together = pool_stacked(stacked)
    whole = torch.cat(batches)
    same(together.mean[0, :, 0], whole.mean((0, 2)))
    same(together.unbiased_var()[0, :, 0], whole.var((0, 2)))


def test_moments_far_from_zero_are_those_of_float64():
    x = data(4, 3, 1000, mean=1e4, std=1.0, dtype=torch.float32)
    found, exact = kernels.moments(x, 2), x.double().reshape(4, 3, 2, 500)
    same(found.mean - 1e4, exact.mean(-1) - 1e4, rtol=1e-6, atol=1e-7)
    same(found.var, exact.var(-1, correction=0), rtol=1e-6, atol=0.0)
