"""Operations of the DARTS space (Liu et al. 2019, sec. 3.1), from C to C channels, with stride 1 or 2.

    none            0
    max_pool_3x3    pooling; in search a norm follows each pool
    avg_pool_3x3
    skip_connect    the identity; with stride 2 a `FactorizedReduce`
    sep_conv_3x3    (ReLU, depthwise convolution, pointwise convolution, norm) twice; the stride is that of the first
    sep_conv_5x5
    dil_conv_3x3    (ReLU, depthwise convolution, pointwise convolution, norm) once, with dilation 2
    dil_conv_5x5

Norms are `nn.BatchNorm2d`, without an affine in the search network, because an affine could rescale the operations weighted by α.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anynorm.errors import SpecError
from anynorm.lab.models.search.supernet import Zero

OPERATIONS = (
    "none", "max_pool_3x3", "avg_pool_3x3", "skip_connect", "sep_conv_3x3", "sep_conv_5x5", "dil_conv_3x3", "dil_conv_5x5",
)  # fmt: skip
NONE = OPERATIONS.index("none")


class StridedZero(Zero):
    """The operation `none` with a stride.

    Args:
        stride: 1 or 2.
    """

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor, *_: object) -> Tensor:
        """Return zeros in the output shape of the other operations."""
        return torch.zeros_like(x[..., :: self.stride, :: self.stride])


class FactorizedReduce(nn.Module):
    """Layer that halves height and width: ReLU, two 1 × 1 convolutions with stride 2, the second shifted by a pixel, and a norm.

    Args:
        in_channels: number of channels of the input.
        out_channels: number of channels of the output; each convolution returns half of them.
        affine: whether the norm has an affine.
    """

    def __init__(self, in_channels: int, out_channels: int, *, affine: bool) -> None:
        super().__init__()
        half = out_channels // 2
        self.even = nn.Conv2d(in_channels, half, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(in_channels, out_channels - half, 1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(out_channels, affine=affine)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of half the height and width, rounded up."""
        x = x.relu()
        shifted = nn.functional.pad(x, (0, 1, 0, 1))[..., 1:, 1:]  # the padding is used only for odd sizes
        both: Tensor = self.norm(torch.cat([self.even(x), self.odd(shifted)], 1))
        return both


def relu_conv_norm(in_channels: int, out_channels: int, *, affine: bool) -> nn.Sequential:
    """Return ReLU, a 1 × 1 convolution and a norm."""
    return nn.Sequential(
        nn.ReLU(), nn.Conv2d(in_channels, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels, affine=affine)
    )


def make_operation(name: str, channels: int, stride: int, *, search: bool) -> nn.Module:
    """Return an operation.

    Args:
        name: one of `OPERATIONS`.
        channels: number of channels C of the input and output.
        stride: 1 or 2.
        search: whether the operation is for a search network, in which norms have no affine and pooling is followed by a norm.

    Raises:
        SpecError: if `name` is not one of `OPERATIONS`.
    """
    if name not in OPERATIONS:
        raise SpecError(f"an operation of the DARTS space must be one of {' '.join(OPERATIONS)}; got {name!r}.")
    if name == "none":
        return StridedZero(stride)
    if name == "skip_connect":
        return nn.Identity() if stride == 1 else FactorizedReduce(channels, channels, affine=not search)
    if name.endswith("pool_3x3"):
        return _pool(name, channels, stride, search=search)
    kernel_size = int(name[-1])
    if name.startswith("dil"):
        return nn.Sequential(*_separable(channels, kernel_size, stride, dilation=2, affine=not search))
    first, second = (_separable(channels, kernel_size, s, dilation=1, affine=not search) for s in (stride, 1))
    return nn.Sequential(*first, *second)


def _pool(name: str, channels: int, stride: int, *, search: bool) -> nn.Module:
    is_max = name.startswith("max")
    pool = nn.MaxPool2d(3, stride, 1) if is_max else nn.AvgPool2d(3, stride, 1, count_include_pad=False)
    return nn.Sequential(pool, nn.BatchNorm2d(channels, affine=False)) if search else pool


def _separable(channels: int, kernel_size: int, stride: int, *, dilation: int, affine: bool) -> list[nn.Module]:
    """Return ReLU, a depthwise convolution, a pointwise convolution and a norm."""
    padding = dilation * (kernel_size // 2)
    return [
        nn.ReLU(),
        nn.Conv2d(channels, channels, kernel_size, stride, padding, dilation, groups=channels, bias=False),
        nn.Conv2d(channels, channels, 1, bias=False),
        nn.BatchNorm2d(channels, affine=affine),
    ]
