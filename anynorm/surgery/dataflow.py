"""Recording of the modules that produce and use each tensor while a model runs on an example.

A layer and a norm are neighbors if the output tensor of one is the input of the other and nothing else uses this tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from anynorm.surgery.modes import preserve_modes


@dataclass(eq=False)
class Call:
    """One call of a traced module.

    Attributes:
        module: the module.
        input: the first argument of the call.
        output: the output of the call.
        product: the output of the function that has the weight of the module as an argument, such as `F.conv2d`. It differs from
            `output` if the module then applies a norm or an activation, as a convolution of detectron2 does.
    """

    module: nn.Module
    input: Any = None
    output: Any = None
    product: Any = None


@dataclass
class Trace:
    """The calls of the traced modules, and the users of each tensor.

    Attributes:
        calls: the calls, in the order of execution.
        uses: the traced modules that used each tensor, by the id of the tensor; None stands for any other code.
        alive: references to all tensors, so that no id is reused.
    """

    calls: list[Call] = field(default_factory=list)
    uses: dict[int, list[nn.Module | None]] = field(default_factory=dict)
    alive: list[Tensor] = field(default_factory=list)

    def calls_of(self, module: nn.Module) -> list[Call]:
        """Return the calls of a module."""
        return [call for call in self.calls if call.module is module]

    def users(self, tensor: Any) -> list[nn.Module | None]:
        """Return the users of a tensor without duplicates."""
        return list(dict.fromkeys(self.uses.get(id(tensor), [])))

    def add_use(self, tensor: Tensor, user: nn.Module | None) -> None:
        """Record that a tensor was used by a traced module, or by other code (None)."""
        self.uses.setdefault(id(tensor), []).append(user)
        self.alive.append(tensor)


class _RecordUses(TorchFunctionMode):
    """A function mode that records the tensor arguments of every function that returns tensors or writes into one."""

    def __init__(self, trace: Trace, running: list[nn.Module]) -> None:
        super().__init__()
        self.trace, self.running = trace, running

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        writes = getattr(func, "__name__", "") == "__setitem__"
        if writes or any(isinstance(leaf, Tensor) for leaf in tree_leaves(output)):
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, Tensor):
                    self.trace.add_use(leaf, self.running[-1] if self.running else None)
            self._record_product(args, output)
        return output

    def _record_product(self, args: Any, output: Any) -> None:
        """Record the output of a function whose second argument is the weight of the running module."""
        weight = self.running[-1]._parameters.get("weight") if self.running else None
        if weight is not None and len(args) > 1 and args[1] is weight:
            next(call for call in reversed(self.trace.calls) if call.module is self.running[-1]).product = output
            self.trace.alive.append(output)


@contextmanager
def _record_calls(modules: list[nn.Module], trace: Trace, running: list[nn.Module]) -> Iterator[None]:
    def before(module: nn.Module, args: Any) -> None:
        first = args[0] if args else None
        trace.calls.append(Call(module, first))
        running.append(module)
        if isinstance(first, Tensor):
            trace.add_use(first, module)

    def after(module: nn.Module, _: Any, output: Any) -> None:
        running.pop()
        next(call for call in reversed(trace.calls) if call.module is module and call.output is None).output = output
        trace.alive += [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]

    handles = []
    try:
        for module in modules:
            handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
        yield
    finally:
        for handle in handles:
            handle.remove()


def trace_example(model: nn.Module, run: Callable[[nn.Module], Any], modules: list[nn.Module]) -> tuple[Trace, Any]:
    """Run a model on an example in eval mode and record the calls of some of its modules.

    Args:
        model: the model; the mode of each module is restored.
        run: a function that calls the model with the example.
        modules: the modules to trace.

    Returns:
        The trace, and the output of the model.
    """
    trace = Trace()
    running: list[nn.Module] = []
    with preserve_modes(model.modules()), torch.no_grad(), _record_calls(modules, trace, running), _RecordUses(trace, running):
        output = run(model.eval())
    for tensor in tensors_of(output):
        trace.add_use(tensor, None)  # the caller of the model uses its output
    return trace, output


def tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors in the output of a model, inside containers and objects of any class.

    Unlike `tree_leaves`, which treats dataclasses and subclasses of dict as leaves.
    """
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for entry in value.values() for tensor in tensors_of(entry)]
    if isinstance(value, tuple | list):
        return [tensor for entry in value for tensor in tensors_of(entry)]
    return tensors_of(vars(value)) if hasattr(value, "__dict__") and not isinstance(value, nn.Module | type) else []
