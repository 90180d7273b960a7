"""The forward of a block after its graph has been rewritten.

It runs the source code of the new graph if all that the graph depends on is as it was: the arguments of the call, the attributes
and children of the block, and the norms and activations that were fused. Otherwise it runs the block's own forward, for instance
while hooks observe one of these modules.

The block gets a subclass of its class with this forward, as in torch.nn.utils.parametrize, so that every copy of the block, also
a shallow one such as a replica of nn.DataParallel, runs it on its own children.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import Tensor, fx, nn

from anynorm import kernels
from anynorm.core.activation import Activation
from anynorm.layers.norm import Norm
from anynorm.surgery.attributes import equals, read
from anynorm.surgery.fold_statistics import Folded

_NORMS = (Norm, Folded)


def has_hooks(module: nn.Module) -> bool:
    """Whether forward or backward hooks are registered on a module."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)


def settings_of(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of an activation or dropout on which its output depends, such as negative_slope and p."""
    return {name: value for name, value in vars(module).items() if name[0] != "_" and name not in ("training", "inplace")}


def add_to_norm(
    norm: Any, x: Tensor, residual: Tensor, *args: Any, activation: Activation | None = None, **kwargs: Any
) -> Tensor:
    """Return φ(norm(x) + residual); in separate operations if the residual would have to be broadcast or cast."""
    fits = residual.shape == x.shape and residual.dtype == x.dtype and residual.device == x.device
    if fits:
        y: Tensor = norm(x, *args, residual=residual, activation=activation, **kwargs)
        return y
    return kernels.finish(norm(x, *args, **kwargs), residual, activation)


@dataclass(frozen=True)
class Dependencies:
    """What a rewritten graph depends on. Paths are relative to the block, and empty for the block itself.

    Attributes:
        arguments: names of the arguments.
        types: their types.
        attributes: values of attributes, by path of the module and name.
        children: names of the children of the block and of its containers, by path.
        norms: paths of the norms that take a residual or an activation.
        unused: classes and settings of the modules that are not called any more, by path.
    """

    arguments: tuple[str, ...]
    types: tuple[type, ...]
    attributes: dict[tuple[str, str], Any]
    children: dict[str, list[str]]
    norms: list[str]
    unused: dict[str, tuple[type, dict[str, Any]]]


def children_of(module: nn.Module) -> list[str]:
    """Return the names of the children of a module."""
    return [name for name, child in module._modules.items() if child is not None]


def fused_forward(module: nn.Module) -> BlockForward | None:
    """Return the new forward of a block; None if it has its own."""
    return getattr(type(module), "_fused_forward", None)


def original_class(module: nn.Module) -> type[nn.Module]:
    """Return the class of a module, also if its forward has been replaced."""
    forward = fused_forward(module)
    return type(module) if forward is None else forward.base


class BlockForward:
    """The forward of blocks with a rewritten graph; it holds no module and does not change.

    Args:
        base: the class of the block.
        graph: the rewritten graph.
        dependencies: what the graph depends on.
        constants: values of other names in the source code of the graph.

    Attributes:
        block_class: subclass of `base` with this forward.
    """

    def __init__(self, base: type[nn.Module], graph: fx.Graph, dependencies: Dependencies, constants: dict[str, Any]) -> None:
        code = graph.python_code("self")
        names = code.globals | constants
        self.base, self.dependencies = base, dependencies
        self.source = _chain_source(graph) if base.forward is nn.Sequential.forward else code.src
        self.modules = {name: value.__name__ for name, value in names.items() if isinstance(value, ModuleType)}
        self.constants = {name: value for name, value in names.items() if not isinstance(value, ModuleType)}
        self._compile()

    def is_valid(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call of a block with these arguments may run the graph."""
        return self._takes(args, kwargs) and self._has_attributes(block) and self._has_norms(block) and self._has_unused(block)

    def _takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if kwargs:
            names = self.dependencies.arguments[len(args) :]
            if kwargs.keys() != {*names}:
                return False
            args = (*args, *[kwargs[name] for name in names])
        return tuple([type(value) for value in args]) == self.dependencies.types

    def _has_attributes(self, block: nn.Module) -> bool:
        if not all([children_of(_descendant(block, path)) == children for path, children in self._children]):
            return False
        return all([equals(read(_descendant(block, path), name), value) for path, name, value in self._attributes])

    def _has_norms(self, block: nn.Module) -> bool:
        for path in self._norms:
            norm: Any = _descendant(block, path)
            if not isinstance(norm, _NORMS) or len(norm.post_modules) or has_hooks(norm):
                return False
            if isinstance(norm, Norm) and norm.activation is not None:
                return False
        return True

    def _has_unused(self, block: nn.Module) -> bool:
        for path, kind, settings in self._unused:
            module = _descendant(block, path)
            if type(module) is not kind or has_hooks(module):
                return False
            if settings and not all([equals(read(module, name), value) for name, value in settings.items()]):
                return False
        return True

    def _compile(self) -> None:
        needed = self.dependencies
        self._children = [(_split(path), children) for path, children in needed.children.items()]
        self._attributes = [(_split(path), name, value) for (path, name), value in needed.attributes.items()]
        self._norms = [_split(path) for path in needed.norms]
        self._unused = [(_split(path), kind, settings) for path, (kind, settings) in needed.unused.items()]
        names = self.constants | {name: importlib.import_module(path) for name, path in self.modules.items()}
        exec(compile(self.source, f"<fused {self.base.__name__}>", "exec"), names)
        self.block_class = _make_class(self, names["forward"])

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without what `_compile` makes."""
        return {name: vars(self)[name] for name in ("base", "source", "dependencies", "modules", "constants")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._compile()

    def __deepcopy__(self, memo: dict[int, Any]) -> BlockForward:
        return self


def _split(path: str) -> tuple[str, ...]:
    return tuple(path.split(".")) if path else ()


_NO_MODULE = nn.Module()


def _descendant(module: nn.Module, path: tuple[str, ...]) -> nn.Module:
    """Return a module inside another; a module without children and attributes if there is none."""
    for name in path:
        child = module._modules.get(name)
        module = _NO_MODULE if child is None else child
    return module


def _chain_source(graph: fx.Graph) -> str:
    """Return the source code of a graph that calls modules one after another: the children are read from the dictionary."""
    lines = ["modules = self._modules"]
    for node in graph.nodes:
        if node.op == "call_module":
            options = "".join(f", {name}={value!r}" for name, value in node.kwargs.items())
            lines.append(f"input = modules[{node.target!r}](input{options})")
    return "\n    ".join(["def forward(self, input):", *lines, "return input\n"])


def _make_class(block_forward: BlockForward, function: Callable[..., Any]) -> type[nn.Module]:
    """Return a subclass of the class of a block with a function as its forward, which is called where it is valid."""
    base, is_valid = block_forward.base, block_forward.is_valid

    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_valid(self, args, kwargs):
            return function(self, *args, **kwargs)
        return base.forward(self, *args, **kwargs)

    def reduce(self: Any, protocol: Any) -> Any:
        """Return how to make a copy: that of the class of the block, with the class set again."""
        reduced: Any = base.__reduce_ex__(self, protocol)
        make, args, *state = reduced
        return _remake, (block_forward, make, tuple([base if value is type(self) else value for value in args])), *state

    names = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    names |= {"forward": forward, "__reduce_ex__": reduce, "_fused_forward": block_forward}
    metaclass: Any = type(base)
    block_class: type[nn.Module] = metaclass(base.__name__, (base,), names)
    return block_class


def _remake(block_forward: BlockForward, make: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Make a copy of a block with a new forward."""
    module = make(*args)
    if type(module) is block_forward.base:
        module.__class__ = block_forward.block_class
    return module
