"""Channels on any axis: views with channels in axis 1, which the kernels expect, and back.

    (n, c), (n, c, …)    channel_axis=1      the input itself
    (n, t, c)            channel_axis=-1     (n, c, t, 1)
    (n, h, w, c)         channel_axis=-1     (n, c, h, w)

Only strides change. A contiguous tensor with channels last becomes a channels_last tensor, which the C++ and Triton kernels read
and write as it is. They know this memory format for 4 and 5 dimensions, hence the axis of length 1 after the tokens.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from anynorm.errors import ShapeError, SpecError


def check_channel_axis(channel_axis: Any) -> int:
    """Return a channel axis.

    Raises:
        SpecError: if it is not an integer, or 0, which is the axis of the samples.
    """
    if isinstance(channel_axis, bool) or not isinstance(channel_axis, int) or channel_axis == 0:
        raise SpecError(
            f"channel_axis must be an integer other than 0, the axis of the samples; got {channel_axis!r}. Usual: 1 for "
            "(n, c, …), -1 for (n, …, c)."
        )
    return channel_axis


def resolve_axis(channel_axis: int, num_dims: int) -> int:
    """Return the index of the channel axis, from 1 on, of an input with `num_dims` dimensions.

    Raises:
        ShapeError: if the input has no such axis, or it is the axis of the samples.

    >>> resolve_axis(-1, 3), resolve_axis(1, 2)
    (2, 1)
    """
    axis = channel_axis + num_dims if channel_axis < 0 else channel_axis
    if not 1 <= axis < num_dims:
        reason = "is the axis of the samples" if axis == 0 else "does not exist"
        raise ShapeError(f"channel_axis {channel_axis} {reason} in an input with {num_dims} dimensions.")
    return axis


def sizes(x: Tensor, channel_axis: int) -> tuple[int, int, int]:
    """Return the number of samples, channels and positions of an input."""
    axis = resolve_axis(channel_axis, x.dim())
    return x.shape[0], x.shape[axis], math.prod(x.shape[1:axis]) * math.prod(x.shape[axis + 1 :])


def to_channels_second(x: Tensor, channel_axis: int) -> Tensor:
    """Return a view of x with channels in axis 1, and at least 4 dimensions if they were in another axis.

    >>> import torch
    >>> view = to_channels_second(torch.zeros(2, 5, 16), -1)
    >>> view.shape, view.is_contiguous(memory_format=torch.channels_last)
    (torch.Size([2, 16, 5, 1]), True)
    """
    axis = resolve_axis(channel_axis, x.dim())
    if axis == 1:
        return x
    if x.dim() == 3:  # before the channels, where its stride is that of a channels_last tensor
        x, axis = x.unsqueeze(2), 3
    return x.movedim(axis, 1)


def from_channels_second(y: Tensor, channel_axis: int, num_dims: int) -> Tensor:
    """Return a view of y with channels in `channel_axis`: the inverse of `to_channels_second` for `num_dims` dimensions."""
    axis = resolve_axis(channel_axis, num_dims)
    if axis == 1:
        return y
    return y.movedim(1, -1).squeeze(2) if num_dims == 3 else y.movedim(1, axis)
