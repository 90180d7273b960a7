"""The code that touches the large tensor, and the dispatch between its implementations.

cpu         eager CPU tensors, float32 or bfloat16, contiguous or channels_last
reference   the definition, and everything else: compile, export, vmap, forward-mode AD, other devices and dtypes, tensor
            subclasses, synchronized passes, positional norms, and machines without numba
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType

import torch
from torch import Tensor, nn

from anynorm.errors import AnynormError
from anynorm.kernels import reference
from anynorm.kernels.interface import NUM_LAYER_PARAMS, BatchStats, Buffers, ForwardSpec, Params, UnsupportedError
from anynorm.kernels.reference import at_least_float32, coefficients, compute_dtype, moments

__all__ = ["at_least_float32", "coefficients", "compute_dtype", "moments", "normalize", "use"]

_selected: ContextVar[str] = ContextVar("anynorm.kernels", default="auto")
_cpu: ModuleType | None = None
_cpu_unavailable = ""
_PLAIN_TYPES = (Tensor, nn.Parameter)
_DTYPES = (torch.float32, torch.bfloat16)


@contextmanager
def use(name: str) -> Iterator[None]:
    """Select the kernels inside a `with` block.

    Args:
        name: "auto" (the fastest that supports a pass), "reference", or "cpu", which raises for an eager pass that it does not
            support; compiled code always uses the reference.

    Raises:
        AnynormError: if there are no such kernels.

    >>> with use("reference"):
    ...     pass
    """
    if name not in ("auto", "reference", "cpu"):
        raise AnynormError(f"name must be 'auto', 'reference' or 'cpu'; got {name!r}.")
    token = _selected.set(name)
    try:
        yield
    finally:
        _selected.reset(token)


def normalize(spec: ForwardSpec, x: Tensor, params: Params, buffers: Buffers) -> tuple[Tensor, BatchStats]:
    """Return y and the statistics of the batch, computed by the kernels that support this pass.

    Raises:
        AnynormError: if kernels were selected with `use` that do not support it.
    """
    if torch.compiler.is_compiling() or (selected := _selected.get()) == "reference":
        return reference.normalize(spec, x, params, buffers)
    try:
        _check_tensors(x, params)
        backend = _cpu or _load_cpu()
        plan = backend.plan_for(spec, x)
    except UnsupportedError as error:
        if selected == "cpu":
            raise AnynormError(f"The cpu kernels do not support this pass: {error}. Use 'auto' or 'reference'.") from None
        return reference.normalize(spec, x, params, buffers)
    result: tuple[Tensor, BatchStats] = backend.normalize(spec, plan, x, params, buffers)
    return result


def _check_tensors(x: Tensor, params: Params) -> None:
    """Check that the CPU kernels support these tensors, whatever their shape."""
    if x.dtype not in _DTYPES:
        raise UnsupportedError(f"the input has dtype {x.dtype}")
    for tensor in (x, *params):
        if tensor is not None and (type(tensor) not in _PLAIN_TYPES or not tensor.is_cpu):
            raise UnsupportedError("a tensor is on another device or is an instance of a subclass")
    for tensor in params[:NUM_LAYER_PARAMS]:
        if tensor is not None and tensor.dtype is torch.float64:
            raise UnsupportedError("the parameters have dtype torch.float64")
    dual = torch.autograd.forward_ad._current_level >= 0
    modes = torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_tracing()
    if dual or modes or torch._C._functorch.peek_interpreter_stack() is not None:
        raise UnsupportedError("a function transform or a dispatch mode is active")


def _load_cpu() -> ModuleType:
    """Import the CPU kernels at first use; warn once if numba is missing or broken."""
    global _cpu, _cpu_unavailable  # noqa: PLW0603
    if _cpu is None and not _cpu_unavailable:
        try:
            from anynorm.kernels._numba import cpu

            cpu.probe()
            _cpu = cpu
        except Exception as error:  # whatever numba raises, layers must work
            _cpu_unavailable = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            warnings.warn(
                f"anynorm runs without its faster CPU kernels: numba cannot be used ({_cpu_unavailable}). Install numba, or "
                "select anynorm.kernels.use('reference') to silence this warning.",
                stacklevel=2,
            )
    if _cpu is None:
        raise UnsupportedError(f"they are not available ({_cpu_unavailable})")
    return _cpu
