"""The only code that touches the big tensor, and the choice of which.

A backend computes `normalise(task, x, owned, given)`; the reference is the definition, and does what the others do not:

    cpu         eager CPU tensors of float32 and bfloat16 whose rows or channels are dense
    reference   everything else: compile, export, vmap, forward-mode AD, other devices and dtypes, subclasses, synchronised
                passes, positional norms, and machines without numba
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.errors import AnynormError
from anynorm.kernels import reference
from anynorm.kernels.interface import BatchStats, Buffers, ForwardSpec, Params
from anynorm.kernels.reference import coefficients, moments, working

__all__ = ["coefficients", "moments", "normalise", "use", "working"]

_chosen: ContextVar[str] = ContextVar("anynorm.kernels", default="auto")
_cpu: ModuleType | None = None
_cpu_missing = ""
_PLAIN = (Tensor, nn.Parameter)
_DTYPES = (torch.float32, torch.bfloat16)


@contextmanager
def use(name: str) -> Iterator[None]:
    """Choose the kernels inside a block: `auto`, `reference`, or `cpu`, which refuses what it does not do.

    >>> with use("reference"):
    ...     pass
    """
    if name not in ("auto", "reference", "cpu"):
        raise AnynormError(f"There are no kernels called {name!r}. Known: auto reference cpu.")
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def normalize(task: ForwardSpec, x: Tensor, owned: Params, given: Buffers) -> tuple[Tensor, BatchStats]:
    """Do a pass by the kernels that fit it."""
    if torch.compiler.is_compiling():
        return reference.normalize(task, x, owned, given)
    chosen = _chosen.get()
    if chosen == "reference":
        return reference.normalize(task, x, owned, given)
    reason = _is_unfit([x, *owned])
    backend = None if reason else _load_cpu()
    plan = reason or _cpu_missing if backend is None else backend.plan_for(task, x)
    if backend is not None and not isinstance(plan, str):
        done: tuple[Tensor, BatchStats] = backend.normalize(task, plan, x, owned, given)
        return done
    if chosen == "cpu":
        raise AnynormError(f"The cpu kernels do not do this pass: {plan}. Use 'auto' or 'reference'.")
    return reference.normalize(task, x, owned, given)


def _is_unfit(tensors: list[Any]) -> str:
    """Say why tensors are not for the cpu kernels, whatever their shape; empty where they are."""
    if tensors[0].dtype not in _DTYPES:
        return f"the input is of {tensors[0].dtype}"
    for tensor in tensors:
        if tensor is not None and (type(tensor) not in _PLAIN or not tensor.is_cpu):
            return "a tensor is of another device or a subclass"
    if any([tensor is not None and tensor.dtype is torch.float64 for tensor in tensors[1:7]]):
        return "the parameters are of torch.float64"
    dual = torch.autograd.forward_ad._current_level >= 0
    modes = torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_tracing()
    if dual or modes or torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform or a mode is active"
    return ""


def _load_cpu() -> ModuleType | None:
    """Import the cpu kernels at first use; a numba that is missing or broken is said once."""
    global _cpu, _cpu_missing  # noqa: PLW0603
    if _cpu is None and not _cpu_missing:
        try:
            from anynorm.kernels._numba import cpu

            cpu.probe()
            _cpu = cpu
        except Exception as error:  # whatever numba raises, norms must work
            _cpu_missing = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            warnings.warn(f"anynorm runs without its CPU kernels, slower: numba cannot be used ({_cpu_missing}).", stacklevel=2)
    return _cpu
