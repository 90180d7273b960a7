"""Functions that torch does not document: the state of its execution, and process groups by name.

Whether a graph is traced or tensor values may be read, whether activation checkpointing recomputes a forward pass, and whether
a function transform or a dispatch mode is active. All uses of private names of torch in the library are in this module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def is_transformed(tensor: Tensor) -> bool:
    """Whether a tensor is the argument of a transform of torch.func, such as vmap or grad, or a batch of gradients."""
    functorch = torch._C._functorch
    return bool(functorch.is_functorch_wrapped_tensor(tensor) or functorch.is_legacy_batchedtensor(tensor))


def is_distributed(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor, which operations do not combine with plain tensors."""
    if type(tensor) is Tensor or torch.compiler.is_compiling():
        return False
    module = sys.modules.get("torch.distributed.tensor")  # importing it takes a second
    return module is not None and isinstance(tensor, module.DTensor)


def is_transforming() -> bool:
    """Whether a function transform, forward-mode AD, a dispatch mode or a trace is active."""
    dual = torch.autograd.forward_ad._current_level >= 0
    modes = torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_tracing()
    return dual or modes or torch._C._functorch.peek_interpreter_stack() is not None


def constant_in_compiled_code(function: Callable[[], bool]) -> Callable[[], bool]:
    """Mark a function that torch.compile calls while it traces, and whose result it treats as a constant.

    The decorator of torch, `torch.compiler.assume_constant_result`, imports the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_in_compiled_code
def is_in_function_transform() -> bool:
    """Whether a transform of torch.func is active, around or inside of compiled code; the compiler guards which ones."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def can_read_values(tensor: Tensor) -> bool:
    """Whether the values of a tensor can be read without breaking a trace or synchronizing with a device."""
    traced = torch.compiler.is_compiling() or is_transformed(tensor)
    return type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu" and not traced


@constant_in_compiled_code
def can_tell_export() -> bool:
    """Whether this version of torch can tell torch.export from torch.compile (2.7 and later)."""
    return hasattr(torch.compiler, "is_exporting")


def is_exporting() -> bool:
    """Whether torch.export traces the code; always False with torch versions that cannot tell it from torch.compile."""
    return can_tell_export() and torch.compiler.is_exporting()


def is_recomputing() -> bool:
    """Whether activation checkpointing recomputes a forward pass during backward; False while compiling (see `recomputing`)."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


@torch.library.custom_op("anynorm::recomputing", mutates_args=())
def recomputing(like: Tensor) -> Tensor:
    """Return `is_recomputing()` as a tensor. It is evaluated when compiled code runs, since it is unknown while tracing."""
    return torch.full((), torch._C._current_graph_task_id() != -1, device=like.device)


@recomputing.register_fake
def _(like: Tensor) -> Tensor:
    return torch.empty((), dtype=torch.bool, device=like.device)


def process_group_name(group: Any) -> str:
    """Return the name of a process group; of the default group if `group` is None."""
    return str((group or dist.distributed_c10d._get_default_group()).group_name)


def process_group_named(name: str) -> Any:
    """Return the process group of a given name."""
    c10d: Any = dist.distributed_c10d
    return c10d._resolve_process_group(name)
