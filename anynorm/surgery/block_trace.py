"""The graph of one block, traced with all its children as leaves, and what the graph depends on.

torch.fx records one path through the Python code of `forward`. A block is refused if another path is possible that the rewritten
forward cannot notice: its graph differs between train and eval mode, it draws random numbers, sets attributes, or changes the
gradient or autocast mode. Attributes of the block and of its descendants that `forward` reads (such as `grad_checkpointing`) are
recorded, so that the rewritten forward can compare them at each call.
"""

from __future__ import annotations

import inspect
import operator
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from anynorm.errors import SurgeryError
from anynorm.surgery.attributes import UnrecordableError, recorded_attributes
from anynorm.surgery.block_forward import fused_forward
from anynorm.surgery.blocks import restored_attributes
from anynorm.surgery.modes import preserve_modes

_AUTOCAST_DEVICES = ("cpu", "cuda")


class UntraceableError(SurgeryError):
    """Raised for a block whose forward cannot be replaced by its graph; the message is the reason."""


@dataclass(frozen=True)
class BlockTrace:
    """The graph of a block.

    Attributes:
        graph: the graph; its placeholders are the arguments of `forward` without a default.
        arguments: the names of these arguments.
        attributes: values of the attributes that `forward` read, by path of the module and name.
    """

    graph: fx.Graph
    arguments: tuple[str, ...]
    attributes: dict[tuple[str, str], Any]


class _Proxy(fx.Proxy):
    """A proxy that records `x += y` as such; that of torch.fx records `x = x + y`, which has no effect on other users of x."""


def _inplace_method(name: str) -> Any:
    function = getattr(operator, name)
    return lambda self, other: self.tracer.create_proxy("call_function", function, (self, other), {})


for _name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "imatmul"):
    setattr(_Proxy, f"__{_name}__", _inplace_method(_name))


class _Tracer(fx.Tracer):
    """A tracer whose leaves are all modules; it compares the gradient and autocast mode of each node with those at the start."""

    proxy_buffer_attributes = True

    def __init__(self) -> None:
        super().__init__()
        self.modes = _modes()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if _modes() != self.modes:
            raise UntraceableError("its forward changes the gradient or autocast mode")
        return super().create_node(*args, **kwargs)


def trace_block(block: nn.Module) -> BlockTrace:
    """Trace a block in train and in eval mode; the block is unchanged afterwards.

    Raises:
        UntraceableError: if the block cannot be traced, or its graph would not be valid for all calls.
    """
    if "forward" in vars(block) or fused_forward(block) is not None:
        raise UntraceableError("its forward has been replaced")
    arguments = _required_arguments(block)
    attributes: dict[tuple[str, str], Any] = {}
    graphs = []
    state = torch.get_rng_state(), random.getstate()
    for training in (True, False):
        with _modes_set(training), preserve_modes(block.modules()), restored_attributes(block):
            for module in block.modules():
                module.training = training
            graphs.append(_trace(block, arguments, attributes))
    if random.getstate() != state[1] or not torch.equal(torch.get_rng_state(), state[0]):
        torch.set_rng_state(state[0])
        random.setstate(state[1])
        raise UntraceableError("its forward draws random numbers")
    if graphs[0].python_code("self").src != graphs[1].python_code("self").src:
        raise UntraceableError("its forward differs between train and eval mode")
    return BlockTrace(graphs[0], arguments, attributes)


def _required_arguments(block: nn.Module) -> tuple[str, ...]:
    """Return the names of the arguments of `forward` without a default; calls with others run the block's own forward."""
    parameters = list(inspect.signature(type(block).forward).parameters.values())[1:]
    names = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not names:
        raise UntraceableError("its forward has no argument without a default")
    return tuple(names)


def _trace(block: nn.Module, arguments: tuple[str, ...], attributes: dict[tuple[str, str], Any]) -> fx.Graph:
    old_class = type(block)
    try:
        block.__class__ = _traced_class(old_class, arguments)
        with recorded_attributes(block, attributes):
            return _Tracer().trace(block)
    except UntraceableError:
        raise
    except UnrecordableError as error:
        raise UntraceableError(str(error)) from None
    except Exception as error:  # code of any kind, on proxies
        message = str(error).strip().splitlines() or [type(error).__name__]
        raise UntraceableError(f"torch.fx cannot trace it: {message[0].rstrip('.')}") from None
    finally:
        block.__class__ = old_class


def _traced_class(base: Any, arguments: tuple[str, ...]) -> type:
    """Return a subclass whose forward has only these arguments and must not set attributes."""

    class Traced(base):  # type: ignore[misc]
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "__class__":
                super().__setattr__(name, value)
            elif name.startswith("_tensor_constant"):
                raise UntraceableError("its forward computes a tensor that does not depend on its input")
            else:
                raise UntraceableError(f"its forward sets the attribute {name}")

    names = ", ".join(arguments)
    # torch.fx reads the arguments from the code object, so the function must have them by name
    Traced.forward = eval(f"lambda self, {names}: forward(self, {names})", {"forward": base.forward})
    Traced.__name__ = Traced.__qualname__ = base.__name__
    return Traced


def _modes() -> tuple[bool, ...]:
    return torch.is_grad_enabled(), *map(torch.is_autocast_enabled, _AUTOCAST_DEVICES)


@contextmanager
def _modes_set(enabled: bool) -> Iterator[None]:
    """Enable or disable gradients and autocast, so that a change by the traced code shows in one of the two."""
    old = _modes()
    try:
        torch.set_grad_enabled(enabled)
        for device in _AUTOCAST_DEVICES:
            torch.set_autocast_enabled(device, enabled)
        yield
    finally:
        torch.set_grad_enabled(old[0])
        for device, value in zip(_AUTOCAST_DEVICES, old[1:], strict=True):
            torch.set_autocast_enabled(device, value)
