"""You study normalization: define a norm as a class, and use it wherever a spec is used.

`bgv:g` has the mean of BatchNorm and the variance of GroupNorm. It is defined by the cuts of mean and variance, and needs no
forward or backward method: it runs on the same kernels as all other norms.

python examples/new_norm.py
"""

from __future__ import annotations

import tempfile

import torch

import anynorm
from anynorm import ALL, Cut, GroupedNorm, NormSpec


class GroupVarianceNorm(GroupedNorm):
    """A norm with the mean of each channel over the batch, and the variance of each sample and group of channels."""

    name, paper, example = "bgv", "this example", "bgv:4"
    arguments = {"num_groups": 4}
    define = staticmethod(lambda num_groups: NormSpec((Cut(1, ALL, 1),), (Cut(ALL, num_groups, 1),)))


if __name__ == "__main__":
    norm = anynorm.make("bgv:2", 8)
    x = 3 + 2 * torch.randn(16, 8, 5, 5, generator=torch.Generator().manual_seed(0))
    var = x.reshape(16, 2, -1).var(2, correction=0).repeat_interleave(4, 1)[:, :, None, None]
    expected = (x - x.mean((0, 2, 3), keepdim=True)) / (var + float(norm.eps)).sqrt()
    print(norm, "equals its formula:", torch.allclose(norm(x), expected, atol=1e-5))

    anynorm.make("bgv:2.sa@10", 8)  # with a sandwich affine for ten classes
    anynorm.make("bgv:2+ln", 8)  # mixed with ln by learned weights
    with tempfile.TemporaryDirectory() as folder:  # compare takes specs too, as do recipes and benchmarks
        table = anynorm.compare(["bn", "bgv:4"], [8], seeds=1, num_train=200, epochs=2, processes=1, runs=folder)
    for row in table:
        print(f"{row['norm']:6} {100 - row['error %, batch 8'].mean:.1f} % correct after 50 steps")

# Output:
# GroupVarianceNorm('bgv:2', 8, eps=1e-05, momentum=0.1) equals its formula: True
# bn     84.6 % correct after 50 steps
# bgv:4  85.5 % correct after 50 steps
