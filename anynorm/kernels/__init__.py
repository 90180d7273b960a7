"""The only code that touches the big tensor, and the choice of which.

A backend computes `normalise(task, x, owned)`; the reference is the definition, and does what the others do not:

    cpu         eager CPU tensors of float32 and bfloat16 whose rows or channels are dense
    reference   everything else: compile, export, vmap, forward-mode AD, other devices and dtypes, subclasses, synchronised
                passes, positional norms, and machines without numba
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.core.cut import ALL
from anynorm.core.sync import Together
from anynorm.core.task import Batch, Owned, Task
from anynorm.errors import AnynormError
from anynorm.kernels import reference
from anynorm.kernels.reference import moments

__all__ = ["moments", "normalise", "use"]

_chosen: ContextVar[str] = ContextVar("anynorm.kernels", default="auto")
_cpu: ModuleType | None = None
_cpu_missing = ""


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


def normalise(task: Task, x: Tensor, owned: Owned) -> tuple[Tensor, Batch]:
    """Do a pass by the kernels that fit it."""
    if torch.compiler.is_compiling():
        return reference.normalise(task, x, owned)
    return _choose(task, x, owned)(task, x, owned)


def _choose(task: Task, x: Tensor, owned: Owned) -> Callable[[Task, Tensor, Owned], tuple[Tensor, Batch]]:
    chosen = _chosen.get()
    if chosen == "reference":
        return reference.normalise
    reason = _unfit(task, x, owned)
    backend = None if reason else _load_cpu()
    if backend is None and chosen == "cpu":
        raise AnynormError(f"The cpu kernels do not do this pass: {reason or _cpu_missing}. Use 'auto' or 'reference'.")
    return reference.normalise if backend is None else backend.normalise


def _unfit(task: Task, x: Tensor, owned: Owned) -> str:
    """Say why the cpu kernels do not do a pass; empty where they do."""
    given = [x, *(tensor for tensor in owned if tensor is not None)]
    if any(type(tensor) not in (Tensor, nn.Parameter) or tensor.device.type != "cpu" for tensor in given):
        return "a tensor is of another device or a subclass"
    if x.dtype not in (torch.float32, torch.bfloat16) or any(t.dtype == torch.float64 for t in owned[:6] if t is not None):
        return f"the input is of {x.dtype}"
    if _is_transformed(given):
        return "a transform or a mode is active"
    if isinstance(task.reach, Together):
        return "the pass is synchronised"
    if any(cut.space == ALL for cut in task.fitted.cuts):
        return "a cut leaves each position on its own"
    return "" if x.numel() and _is_dense(x) else "the input is empty or its rows are not dense"


def _is_transformed(given: list[Any]) -> bool:
    dual = torch.autograd.forward_ad._current_level >= 0
    modes = torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_tracing()
    return dual or modes or any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in given)


def _is_dense(x: Tensor) -> bool:
    if x.is_contiguous():
        return True
    kinds = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.dim() in kinds and x.is_contiguous(memory_format=kinds[x.dim()])


def _load_cpu() -> ModuleType | None:
    """Import the cpu kernels at first use; a numba that is missing or broken is said once."""
    global _cpu, _cpu_missing  # noqa: PLW0603
    if _cpu is None and not _cpu_missing:
        try:
            from anynorm.kernels import cpu

            cpu.probe()
            _cpu = cpu
        except Exception as error:  # whatever numba raises, norms must work
            _cpu_missing = f"{type(error).__name__}: {error}"
            warnings.warn(f"anynorm runs without its CPU kernels, slower: numba cannot be used ({_cpu_missing}).", stacklevel=2)
    return _cpu
