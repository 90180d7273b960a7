"""Execution state: whether tensor values may be read, and whether activation checkpointing recomputes a forward pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def can_read_values(tensor: Tensor) -> bool:
    """Whether the values of a tensor can be read without breaking a trace or synchronizing with a device."""
    traced = torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu" and not traced


def is_exporting() -> bool:
    """Whether torch.export traces the code; always False with torch versions that cannot tell it from torch.compile."""
    return hasattr(torch.compiler, "is_exporting") and torch.compiler.is_exporting()


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
