"""The kernels, which compute y and the batch statistics from x, and the dispatch between their implementations.

cpu         C++, for CPU tensors of float32 or bfloat16, contiguous or channels_last, eager or compiled
gpu         Triton, for eager CUDA and ROCm tensors of float32, float16 or bfloat16, contiguous or channels_last
reference   plain torch operations, for all other cases: compile on GPUs, export, vmap, forward-mode AD, other devices and
            dtypes, tensor subclasses, cuts with a statistic per position mixed with others, and if C++ or Triton kernels
            are not available; for masks and batch indices also compiled code, GPUs, strips and ghost batches
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.core.compat import can_tell_export, is_exporting, is_in_function_transform, is_transforming
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
from anynorm.kernels.reference import in_layout_of as in_layout_of
from anynorm.kernels.reference import moments as moments
from anynorm.kernels.reference import normalize_by as normalize_by

__all__ = ["describe", "use"]  # the public names

_selected: ContextVar[str] = ContextVar("anynorm.kernels", default="auto")
_PLAIN_TYPES = (Tensor, nn.Parameter)
_BACKENDS: dict[str, Any] = {"cpu": cpu, "gpu": gpu}  # modules with check_supported, normalize and describe
_DTYPES = {"cpu": (torch.float32, torch.bfloat16), "gpu": (torch.float32, torch.float16, torch.bfloat16)}


@contextmanager
def use(name: str) -> Iterator[None]:
    """Select the kernels inside a `with` block.

    Compiled code uses the C++ kernels on the CPU, and the reference on all other devices, whatever is selected.

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


def backend_of(device: torch.device) -> str:
    """Return the name of the kernels for a device: "cpu", "gpu", or "reference"."""
    return {"cpu": "cpu", "cuda": "gpu"}.get(device.type, "reference")


def supported_dtypes(name: str) -> tuple[torch.dtype, ...]:
    """Return the dtypes of x that kernels support, float32 first; float32 for the reference, which supports all of them."""
    return _DTYPES.get(name, (torch.float32,))


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
    if params.residual is not None and spec.activation is not None and not spec.activation.keeps_sign:
        bare = replace(spec, activation=None) if torch.compiler.is_compiling() else spec.without_activation
        y, batch = normalize(bare, x, params, buffers)  # in one pass, backward would need a third tensor of the size of x
        return spec.activation(y), batch
    if buffers.ragged is not None:
        if params.residual is not None:
            params = params._replace(residual=buffers.ragged.keep(params.residual))
        if not spec.depends_on_samples(buffers.ragged):
            y, batch = normalize(spec, buffers.ragged.keep(x), params, buffers._replace(ragged=None))
            return buffers.ragged.keep(y), batch
    if torch.compiler.is_compiling():
        return _normalize_compiled(spec, x, params, buffers)
    return _normalize_eager(spec, x, params, buffers)


def _normalize_eager(spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
    """Normalize x in eager code, with the kernels that are selected or support this forward pass."""
    if (selected := _selected.get()) == "reference":
        return reference.normalize(spec, x, params, buffers)
    name = ("gpu" if x.is_cuda else "cpu") if selected == "auto" else selected
    if spec.has_positional_cut and spec.by_position is not None and x.dtype in _DTYPES[name]:
        return _normalize_positions(spec.by_position, x, params, buffers)
    backend = _BACKENDS[name]
    try:
        _check_tensors(x, params, name)
        _check_pass(spec, x)
        if buffers.ragged is not None:
            _check_ragged(spec, name)
        backend.check_supported(spec, x)
        result: tuple[Tensor, BatchStats] = backend.normalize(spec, x, params, buffers)
        return result
    except UnsupportedError as error:
        if selected != "auto":
            raise AnynormError(f"The {name} kernels do not support this pass: {error}. Use 'auto' or 'reference'.") from None
    return reference.normalize(spec, x, params, buffers)


def _normalize_compiled(spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
    """Normalize x in compiled code: by C++ operators on the CPU; otherwise by plain operations, which inductor fuses.

    The operators have no rules for the transforms of torch.func, and exported graphs must not contain them.
    """
    is_traced = is_exporting() or not can_tell_export() or is_in_function_transform()
    has_kernels = x.is_cpu and x.dtype in _DTYPES["cpu"] and buffers.ragged is None
    if not has_kernels or is_traced or not cpu.is_available():
        return reference.normalize(spec, x, params, buffers)
    vectors = spec.vector_spec() if spec.has_positional_cut else None
    if vectors is not None:
        return _normalize_positions(vectors, x, params, buffers)
    has_wide = any([tensor is not None and tensor.dtype is torch.float64 for tensor in params[:NUM_LAYER_PARAMS]])
    has_ghost_sync = spec.has_ghost_cut and spec.sync_group.is_synchronized
    if has_wide or spec.has_positional_cut or spec.has_crossing_cut or spec.has_zero_cut or has_ghost_sync:
        return reference.normalize(spec, x, params, buffers)
    return cpu.normalize(spec, x, params, buffers)


def _normalize_positions(spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
    """Normalize the channels of each position as a separate sample (n · positions, c)."""
    vectors = x.movedim(1, -1)
    if params.residual is not None:
        params = params._replace(residual=params.residual.movedim(1, -1).reshape(-1, x.shape[1]))
    y, batch = normalize(spec, vectors.reshape(-1, x.shape[1]), params, buffers)
    y = y.reshape(vectors.shape).movedim(-1, 1)
    return reference.in_layout_of(x, y.contiguous() if x.is_contiguous() else y), batch


def _check_tensors(x: Tensor, params: Params, name: str) -> None:
    """Raise UnsupportedError if the kernels do not support the types, dtypes or devices of the tensors."""
    if x.dtype not in _DTYPES[name]:
        raise UnsupportedError(f"the input has dtype {x.dtype}")
    for index, tensor in enumerate((x, *params) if name == "gpu" else ()):  # cpu.normalize checks its inputs by itself
        if tensor is None:
            continue
        if type(tensor) not in _PLAIN_TYPES or tensor.device != x.device:
            raise UnsupportedError("a tensor is on another device or is an instance of a subclass")
        if index <= NUM_LAYER_PARAMS and index and tensor.dtype is torch.float64:
            raise UnsupportedError("the parameters have dtype torch.float64")
    if is_transforming():
        raise UnsupportedError("a function transform or a dispatch mode is active")


def _check_pass(spec: ForwardSpec, x: Tensor) -> None:
    """Raise UnsupportedError if neither the C++ nor the Triton kernels support this pass with the input x."""
    if spec.has_positional_cut:
        raise UnsupportedError("a cut keeps every position separate")
    if spec.has_crossing_cut:
        raise UnsupportedError("parts of a cut end inside channels")
    if spec.has_zero_cut:
        raise UnsupportedError("the mean of one of several cuts is 0")
    if spec.sync_group.is_synchronized:
        if spec.has_ghost_cut:
            raise UnsupportedError("ghost batches are synchronized")
    elif not x.numel() or not (x.is_contiguous() or is_channels_last(x)):
        raise UnsupportedError("the input is empty or its rows are not dense")


def _check_ragged(spec: ForwardSpec, name: str) -> None:
    """Raise UnsupportedError if the kernels do not support hidden positions or samples of points in this pass."""
    if name != "cpu":
        raise UnsupportedError("positions are masked, or points have a batch_index")
    if spec.has_ghost_cut or any(cut.space != 1 for cut in spec.cuts.distinct):
        raise UnsupportedError("positions are masked, or points have a batch_index, and a cut has strips or ghost batches")
