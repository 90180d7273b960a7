"""The Triton kernels for eager CUDA and ROCm tensors: launches them, and checks them at first use on a device.

No GPU has run them yet: they are tested in Triton's interpreter (TRITON_INTERPRET=1, on CPU tensors) and compiled for three
architectures. Besides x, y, the residual and their gradients, they need memory for a few numbers per row (sample, channel,
strip), and for a copy of dy or of the residual if its strides or dtype differ from those of x. Backward needs x, and y if there
are a residual and an activation. No pass synchronizes with the device.
"""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext
from importlib import util
from typing import Any

import torch
from torch import Tensor

from anynorm.core.activation import Activation
from anynorm.core.compat import is_transformed
from anynorm.core.mixing import Argmax
from anynorm.kernels import reference
from anynorm.kernels.gpu_pass import Pass
from anynorm.kernels.gpu_plan import make_plan, triton_kernels
from anynorm.kernels.gpu_sizes import check_sizes
from anynorm.kernels.interface import (
    BatchStats,
    Buffers,
    ForwardSpec,
    Params,
    UnsupportedError,
    is_channels_last,
    read_batch_stats,
)

MAX_ROWS = 2**28
MIN_TRITON = (3, 7)
"""Minimum version of Triton that compiles the kernels."""

problems: dict[torch.device, str] = {}
"""The reason why the kernels are not used, for each device that was checked; empty if they are used."""


def describe() -> str:
    """Return a description of when the kernels are used, or why they are not."""
    if util.find_spec("triton") is None:
        return "not available: triton is not installed"
    failed = "; ".join(f"not used on {device}: {problem}" for device, problem in problems.items() if problem)
    text = f"Triton {_triton_version()}, used for eager CUDA and ROCm tensors; tested in Triton's interpreter and compiled for "
    return failed or text + "sm_80, sm_90 and gfx942; no GPU has run them yet"


def _triton_version() -> str:
    import triton

    return str(triton.__version__)


def is_supported_device(x: Tensor) -> bool:
    """Whether the kernels can run on the device of x."""
    return x.is_cuda or (x.is_cpu and util.find_spec("triton") is not None and triton_kernels().INTERPRETED)


def check_supported(spec: ForwardSpec, x: Tensor) -> None:
    """Raise UnsupportedError if the kernels do not support a forward pass with the input x."""
    if not is_supported_device(x):
        raise UnsupportedError("they run on CUDA and ROCm tensors")
    if x.shape[0] * x.shape[1] * spec.num_strips(x) > MAX_ROWS or math.prod(x.shape[1:]) >= 2**31:
        raise UnsupportedError("the input is too large for offsets of 32 bits")
    if x.device not in problems:
        _check_device(x.device)
    if problems[x.device]:
        raise UnsupportedError(f"they are not used on {x.device} ({problems[x.device]})")


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Pass, x: Tensor, *params: Tensor | None) -> Tensor:
        *others, residual = params
        with _on_device(x):
            y = call.forward(x, _kernel_params(Params(*others)), None if residual is None else _like(x, residual))
        ctx.call = call
        needs_y = residual is not None and call.spec.activation is not None
        ctx.save_for_backward(x, y if needs_y else None, call.stats, call.counts, call.buffers.labels, *others)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        spec, (x, y, _, _, _, *params), needs_dresidual = ctx.call.spec, ctx.saved_tensors, ctx.needs_input_grad[-1]
        if torch.is_grad_enabled() or is_transformed(dy):  # to be differentiated again, or for a batch of dy
            if y is not None:
                dy, spec = _activation_gradient(spec.activation, y.detach(), dy), spec.without_activation
            fixed, needed = ctx.call.fixed_buffers(), ctx.needs_input_grad[1:]
            *others, _ = reference.gradients(spec, x, Params(*params), fixed, dy, needed)
            return (None, *others, dy if needs_dresidual else None)
        grads = {}
        for name, param, needed in zip(Params._fields, params, ctx.needs_input_grad[2:-1], strict=False):
            is_logits = name in ("mean_weight", "var_weight")
            if needed and not (is_logits and isinstance(spec.norm_spec.mixing, Argmax)):  # argmax has no gradient
                grads[name] = param.new_empty(param.shape[::-1] if is_logits else param.shape)
        dparams, gradient = Params(**grads), triton_kernels().KernelGradient(_like(x, dy), y)
        dresidual = torch.empty_like(x) if needs_dresidual and y is not None else None
        with _on_device(x):
            kernel_params = (_kernel_params(Params(*params)), _kernel_params(dparams))
            dx = ctx.call.backward(x, gradient, *kernel_params, dresidual, ctx.needs_input_grad[1])
        logits = (None if grad is None else grad.t() for grad in dparams[4:6])
        dresidual = dy if needs_dresidual and y is None else dresidual
        return (None, dx, *dparams[:4], *logits, *dparams[6:8], dresidual)


def _like(x: Tensor, values: Tensor) -> Tensor:
    """Return values with the dtype and strides of x; a copy only if they differ."""
    is_like = values.dtype == x.dtype and values.stride() == x.stride()
    return values if is_like else torch.empty_like(x).copy_(values)


def _activation_gradient(activation: Activation, y: Tensor, dy: Tensor) -> Tensor:
    """Return dy φ′(z), which can be differentiated again, for an activation that keeps the sign: φ′(z) = φ′(y)."""
    with torch.enable_grad():
        y = y.requires_grad_()
        return torch.autograd.grad(activation(y), y, dy, create_graph=True)[0]


def _on_device(x: Tensor) -> Any:
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _kernel_params(params: Params) -> Any:
    """Convert parameters, or their gradients, to `KernelParams`; a style takes the place of the affine per class."""
    is_style = params.class_weight is None and params.class_bias is None
    second = (params.style_std, params.style_mean) if is_style else (params.class_weight, params.class_bias)
    tensors = (params.weight, params.bias, *second, params.mean_weight, params.var_weight)
    return triton_kernels().KernelParams(*(None if tensor is None else tensor.contiguous() for tensor in tensors))


def normalize(spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
    """Return y and the batch statistics; update the running statistics in place. For the arguments, see `kernels.normalize`.

    Raises:
        ShapeError: if the size of a tensor does not fit the norm and x.
    """
    last = is_channels_last(x)
    x = x if last or x.is_contiguous() else x.contiguous()
    if params.style_mean is not None and params.style_std is not None:  # one may have a row for all samples
        params = params._replace(**_same_rows(params.style_mean, params.style_std))
    if spec.updates_in_sequence:
        buffers = buffers._replace(momentum=None)  # the layer updates the running statistics
    labels = None if buffers.labels is None else buffers.labels.contiguous()
    plan = make_plan(spec, x.shape, x.element_size(), last, 0 if params.style_std is None else params.style_std.shape[0])
    call = Pass(spec, plan, buffers._replace(labels=labels))
    check_sizes(spec, x, params, call.buffers)
    y: Tensor = _Normalize.apply(call, x, *params)  # type: ignore[no-untyped-call]
    is_updated = buffers.momentum is not None
    if is_updated and (x.is_cuda or not (spec.num_domains or spec.sync_group.is_synchronized)):
        return y, BatchStats([None for _ in spec.uses_batch], is_updated=True)  # the layer does not need the statistics
    num_rows = [plan.size(index)[0] for index in range(len(spec.uses_batch))]
    return y, read_batch_stats(spec, x, call.stats, call.counts, num_rows)._replace(is_updated=is_updated)


def _same_rows(style_mean: Tensor, style_std: Tensor) -> dict[str, Tensor]:
    """Expand the mean and std of a style to the same number of rows."""
    num_rows = max(style_mean.shape[0], style_std.shape[0])
    return {"style_mean": style_mean.expand(num_rows, -1), "style_std": style_std.expand(num_rows, -1)}


def _check_device(device: torch.device) -> None:
    """Compare the kernels with the reference on small inputs; warn if they differ or Triton raises an error."""
    from anynorm.kernels.gpu_check import find_difference

    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError(f"they were not checked on {device} before a CUDA graph was captured")
    try:
        version = _triton_version()
        is_new = tuple(int(number) for number in version.split(".")[:2]) >= MIN_TRITON
        too_old = f"they need Triton {MIN_TRITON[0]}.{MIN_TRITON[1]} or later; {version} is installed"
        problems[device] = find_difference(normalize, device) if is_new else too_old
    except Exception as error:  # Triton raises many types
        problems[device] = f"Triton failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if problems[device]:
        warnings.warn(f"anynorm runs without its Triton kernels on {device}: {problems[device]}.", stacklevel=2)
