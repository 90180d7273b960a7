"""The kernels, which compute y and the batch statistics from x, and the dispatch between their implementations.

cpu         C++, for eager CPU tensors of float32 or bfloat16, contiguous or channels_last
gpu         Triton, for eager CUDA and ROCm tensors of float32, float16 or bfloat16, contiguous or channels_last
reference   plain torch operations, for all other cases: compile, export, vmap, forward-mode AD, other devices and dtypes, tensor
            subclasses, cuts with a statistic per position mixed with others, and if C++ or Triton kernels are not available
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.core.compat import is_transforming
from anynorm.errors import AnynormError
from anynorm.kernels import cpu, gpu, reference
from anynorm.kernels.interface import (
    NUM_LAYER_PARAMS,
    BatchStats,
    Buffers,
    ForwardSpec,
    Params,
    UnsupportedError,
    is_channels_last,
)
from anynorm.kernels.reference import at_least_float32 as at_least_float32
from anynorm.kernels.reference import coefficients as coefficients
from anynorm.kernels.reference import compute_dtype as compute_dtype
from anynorm.kernels.reference import finish as finish
from anynorm.kernels.reference import moments as moments

__all__ = ["describe", "use"]  # the public names

_selected: ContextVar[str] = ContextVar("anynorm.kernels", default="auto")
_PLAIN_TYPES = (Tensor, nn.Parameter)
_BACKENDS: dict[str, Any] = {"cpu": cpu, "gpu": gpu}  # modules with check_supported, normalize and describe
_DTYPES = {"cpu": (torch.float32, torch.bfloat16), "gpu": (torch.float32, torch.float16, torch.bfloat16)}


@contextmanager
def use(name: str) -> Iterator[None]:
    """Select the kernels inside a `with` block.

    Compiled code always uses the reference.

    Args:
        name: "auto" for the fastest kernels that support a forward pass; "reference"; or "cpu" or "gpu", with which an
            unsupported forward pass raises an error.

    Raises:
        AnynormError: if `name` is not one of these.

    >>> with use("reference"):
    ...     pass
    """
    if name not in ("auto", "reference", *_BACKENDS):
        raise AnynormError(f"name must be 'auto', 'reference', 'cpu' or 'gpu'; got {name!r}.")
    token = _selected.set(name)
    try:
        yield
    finally:
        _selected.reset(token)


def describe() -> dict[str, str]:
    """Return, by name of the kernels, a description of when they are used, or why they are not available."""
    texts = {name: backend.describe() for name, backend in _BACKENDS.items()}
    return {**texts, "reference": "plain torch operations, used for everything else"}


def normalize(spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
    """Normalize x with the selected kernels, or with the fastest ones that support this forward pass.

    Args:
        spec: the description of the forward pass.
        x: the input, (n, c, …).
        params: the parameters and the style, which receive gradients.
        buffers: running statistics and labels, which receive no gradients.

    Returns:
        y, and the batch statistics.

    Raises:
        AnynormError: if the kernels selected with `use` do not support this forward pass.
    """
    if torch.compiler.is_compiling() or (selected := _selected.get()) == "reference":
        return reference.normalize(spec, x, params, buffers)
    if params.residual is not None and spec.activation is not None and not spec.activation.keeps_sign:
        y, batch = normalize(spec.without_activation, x, params, buffers)  # backward would need a third tensor of the size of x
        return spec.activation(y), batch
    name = ("gpu" if x.is_cuda else "cpu") if selected == "auto" else selected
    if spec.has_positional_cut and spec.by_position is not None and x.dtype in _DTYPES[name]:
        return _normalize_positions(spec.by_position, x, params, buffers)
    try:
        _check_tensors(x, params, name)
        _check_pass(spec, x)
        _BACKENDS[name].check_supported(spec, x)
    except UnsupportedError as error:
        if selected != "auto":
            raise AnynormError(f"The {name} kernels do not support this pass: {error}. Use 'auto' or 'reference'.") from None
        return reference.normalize(spec, x, params, buffers)
    result: tuple[Tensor, BatchStats] = _BACKENDS[name].normalize(spec, x, params, buffers)
    return result


def _normalize_positions(spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
    """Normalize the channels of each position as a separate sample (n · positions, c)."""
    vectors = x.movedim(1, -1)
    if params.residual is not None:
        params = params._replace(residual=params.residual.movedim(1, -1).reshape(-1, x.shape[1]))
    y, batch = normalize(spec, vectors.reshape(-1, x.shape[1]), params, buffers)
    y = y.reshape(vectors.shape).movedim(-1, 1)
    return reference.with_strides_of(x, y.contiguous() if x.is_contiguous() else y), batch


def _check_tensors(x: Tensor, params: Params, name: str) -> None:
    """Raise UnsupportedError if the kernels do not support the types, dtypes or devices of the tensors."""
    if x.dtype not in _DTYPES[name]:
        raise UnsupportedError(f"the input has dtype {x.dtype}")
    for tensor in (x, *params):
        if tensor is None:
            continue
        if type(tensor) not in _PLAIN_TYPES or not (tensor.is_cpu if name == "cpu" else tensor.device == x.device):
            raise UnsupportedError("a tensor is on another device or is an instance of a subclass")
    for tensor in params[:NUM_LAYER_PARAMS]:
        if tensor is not None and tensor.dtype is torch.float64:
            raise UnsupportedError("the parameters have dtype torch.float64")
    if is_transforming():
        raise UnsupportedError("a function transform or a dispatch mode is active")


def _check_pass(spec: ForwardSpec, x: Tensor) -> None:
    """Raise UnsupportedError if neither the C++ nor the Triton kernels support this pass with the input x."""
    if spec.has_positional_cut:
        raise UnsupportedError("a cut keeps every position separate")
    if spec.has_crossing_cut:
        raise UnsupportedError("parts of a cut end inside channels")
    if spec.sync_group.is_synchronized:
        if spec.has_ghost_cut:
            raise UnsupportedError("ghost batches are synchronized")
    elif not x.numel() or not (x.is_contiguous() or is_channels_last(x)):
        raise UnsupportedError("the input is empty or its rows are not dense")
