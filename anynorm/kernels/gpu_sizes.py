"""Checks of the sizes of all tensors whose memory the Triton kernels address, before they are launched."""

from __future__ import annotations

import math

from torch import Tensor

from anynorm.errors import ShapeError
from anynorm.kernels.interface import Buffers, ForwardSpec, Params


def check_sizes(spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> None:
    """Check the sizes of all tensors that the kernels read or write at offsets computed from the norm and x.

    Raises:
        ShapeError: if the size of a tensor does not fit.
    """
    n, c, groups = x.shape[0], spec.num_features, spec.norm_spec.mixing.groups
    by_class, logits = (spec.norm_spec.num_classes, c), [(groups, len(side)) for side in (spec.cuts.mean, spec.cuts.var)]
    style = (1 if params.style_std is not None and params.style_std.shape[0] == 1 else n, c)
    sizes: list[tuple[int, ...]] = [(c,), (c,), by_class, by_class, *logits, style, style]
    for name, tensor, size in zip(Params._fields, params, [*sizes, tuple(x.shape)], strict=True):
        if tensor is not None and tensor.shape not in (size, size[1:] if size[0] == 1 else size):
            raise ShapeError(f"{name} must have shape {size}; got {tuple(tensor.shape)}.")
    if c != x.shape[1] or (spec.norm_spec.num_classes and (buffers.labels is None or buffers.labels.shape != (n,))):
        raise ShapeError(
            f"The input must have {c} channels and one label per sample, if there are classes; got {tuple(x.shape)}."
        )
    for index, pair in enumerate(buffers.running_stats):
        for buffer in pair or ():
            if buffer is not None and not _fits(buffer, math.prod(spec.stats_shape(index))):
                raise ShapeError(f"Running statistics must be contiguous, {spec.stats_shape(index)}; got {tuple(buffer.shape)}.")
    for name, counter in (("num_batches_tracked", buffers.num_batches), ("num_batches_skipped", buffers.num_skipped)):
        if counter is not None and not _fits(counter, max(spec.num_domains, 1)):
            raise ShapeError(f"{name} must have one entry per domain; got shape {tuple(counter.shape)}.")


def _fits(buffer: Tensor, size: int) -> bool:
    return buffer.numel() == size and buffer.is_contiguous()
