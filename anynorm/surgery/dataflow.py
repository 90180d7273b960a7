"""Who feeds whom in a model, as seen on one example: the model runs, whatever its control flow, and uses of tensors are noted.

A layer and a norm are neighbours when the one's output, the very tensor, is the other's input and nothing else uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves


@dataclass(eq=False)
class Call:
    """One call of a watched module: the tensor it took and the one it gave."""

    module: nn.Module
    taken: Any = None
    given: Any = None


@dataclass
class Trace:
    """Calls of the watched modules, and who used each tensor: a watched module, or anything else (None)."""

    calls: list[Call] = field(default_factory=list)
    uses: dict[int, list[nn.Module | None]] = field(default_factory=dict)
    alive: list[Tensor] = field(default_factory=list)

    def of(self, module: nn.Module) -> list[Call]:
        """List the calls of a module."""
        return [call for call in self.calls if call.module is module]

    def users(self, tensor: Any) -> list[nn.Module | None]:
        """List who used a tensor, each watched module once."""
        return list(dict.fromkeys(self.uses.get(id(tensor), [])))


class _Uses(TorchFunctionMode):
    """Notes every function that makes tensors out of tensors."""

    def __init__(self, trace: Trace, inside: list[nn.Module]) -> None:
        super().__init__()
        self.trace, self.inside = trace, inside

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        writes = getattr(func, "__name__", "") == "__setitem__"
        if writes or any(isinstance(leaf, Tensor) for leaf in tree_leaves(found)):
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, Tensor):
                    self.trace.uses.setdefault(id(leaf), []).append(self.inside[-1] if self.inside else None)
                    self.trace.alive.append(leaf)
        return found


@contextmanager
def _watched(modules: list[nn.Module], trace: Trace, inside: list[nn.Module]) -> Iterator[None]:
    def enter(module: nn.Module, args: Any) -> None:
        taken = args[0] if args else None
        trace.calls.append(Call(module, taken))
        inside.append(module)
        if isinstance(taken, Tensor):
            trace.uses.setdefault(id(taken), []).append(module)
            trace.alive.append(taken)

    def leave(module: nn.Module, _: Any, given: Any) -> None:
        inside.pop()
        next(call for call in reversed(trace.calls) if call.module is module and call.given is None).given = given
        trace.alive += [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]

    handles = []
    try:
        for module in modules:
            handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
        yield
    finally:
        for handle in handles:
            handle.remove()


def trace_example(model: nn.Module, example: tuple[Any, ...], modules: list[nn.Module]) -> tuple[Trace, Any]:
    """Run a model on an example in eval mode and note what happens; give its output too."""
    trace, inside = Trace(), []  # type: tuple[Trace, list[nn.Module]]
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.no_grad(), _watched(modules, trace, inside), _Uses(trace, inside):
            output = model(*example)
    finally:
        for module, mode in modes.items():
            module.training = mode
    for tensor in tensors_of(output):
        trace.uses.setdefault(id(tensor), []).append(None)  # whoever called the model uses it
    return trace, output


def tensors_of(value: Any) -> list[Tensor]:
    """List the tensors in what a model gives, in containers and objects of any kind."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for one in value.values() for tensor in tensors_of(one)]
    if isinstance(value, tuple | list):
        return [tensor for one in value for tensor in tensors_of(one)]
    return tensors_of(vars(value)) if hasattr(value, "__dict__") and not isinstance(value, nn.Module | type) else []
