"""The two ends of every norm in plain torch: the definition, for any device and dtype, and everything that traces.

moments   one mean and variance for each (sample, channel, strip)
scale     y = a (x − mean) + b
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anynorm.core.moments import Moments, table_dtype


def _working(x: Tensor) -> Tensor:
    """Half types are summed in float32: 300² is past the range of float16."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def moments(x: Tensor, strips: int) -> Moments:
    """Take the moments of each sample, channel and strip of the flattened space: a table (n, c, strips).

    The values are shifted by a number near their mean first (no gradient belongs to it, for any number gives the same
    result), so that float32 sums lose nothing however far the mean is from zero.
    """
    n, c = x.shape[:2]
    rows = _working(x).reshape(n, c, strips, math.prod(x.shape[2:]) // strips)
    shift = rows.detach().mean(-1, keepdim=True)
    centred = rows - shift
    rest = centred.mean(-1, keepdim=True)
    var = (centred - rest).square().mean(-1)
    wide = table_dtype(x)
    mean = shift.to(wide) + rest.to(wide)
    return Moments(mean.squeeze(-1), var.to(wide), torch.full((1, 1, 1), rows.shape[-1], dtype=wide, device=x.device))


def scale(x: Tensor, mean: Tensor, coefficients: tuple[Tensor, Tensor]) -> Tensor:
    """Give y = a (x − mean) + b in x's dtype and memory format; mean and the coefficients a, b broadcast to (n, c, strips).

    The rounding of `mean` to x's precision is paid back in b.
    """
    a, b = coefficients
    values = _working(x)
    shift = mean.detach().to(values.dtype)
    rest = b - a * (mean - shift)
    shift, a, rest = (_unfold(table.to(values.dtype), x) for table in (shift, a, rest))
    return ((values - shift) * a + rest).to(x.dtype)  # x first: the first operand's memory format is the result's


def _unfold(table: Tensor, x: Tensor) -> Tensor:
    """Lay a table (n, c, t) over the axes of x."""
    space = x.shape[2:]
    if table.shape[-1] == 1:
        return table.reshape(*table.shape[:2], *(1 for _ in space))
    n, c, t = table.shape
    return table[..., None].expand(n, c, t, math.prod(space) // t).reshape(n, c, *space)
