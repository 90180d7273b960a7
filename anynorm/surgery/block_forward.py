"""The forward of a block after its graph has been rewritten.

It runs the source code of the new graph if all that the graph depends on is as it was: the arguments of the call, the attributes
and children of the block, and the norms and activations that were fused. Otherwise it runs the block's own forward, for instance
while hooks observe one of these modules.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import Tensor, fx, nn

from anynorm import kernels
from anynorm.core.activation import Activation
from anynorm.layers.norm import Norm
from anynorm.surgery.fold_statistics import Folded

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """Whether forward or backward hooks are registered on a module."""
    return any([bool(getattr(module, name)) for name in _HOOKS])


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
    """What a rewritten graph depends on.

    Attributes:
        arguments: names of the arguments.
        types: their types.
        attributes: names and values of attributes of the block.
        children: names of the children of the block.
        norms: paths of the norms that take a residual or an activation.
        unused: paths, classes and settings of the modules that are not called any more.
    """

    arguments: tuple[str, ...]
    types: tuple[type, ...]
    attributes: dict[str, Any]
    children: list[str]
    norms: list[str]
    unused: dict[str, tuple[type, dict[str, Any]]]


class BlockForward:
    """The forward of a block with a rewritten graph; can be copied and pickled with the block.

    Args:
        block: the block.
        graph: the rewritten graph.
        dependencies: what the graph depends on.
        constants: values of other names in the source code of the graph.
    """

    def __init__(self, block: nn.Module, graph: fx.Graph, dependencies: Dependencies, constants: dict[str, Any]) -> None:
        code = graph.python_code("self")
        names = code.globals | constants
        self.block, self.source, self.dependencies = block, code.src, dependencies
        self.modules = {name: value.__name__ for name, value in names.items() if isinstance(value, ModuleType)}
        self.constants = {name: value for name, value in names.items() if not isinstance(value, ModuleType)}
        self.function = self._compile()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the rewritten graph, or the block's own forward if something that the graph depends on has changed."""
        if self._takes(args, kwargs) and self._is_valid():
            return self.function(self.block, *args, **kwargs)
        return type(self.block).forward(self.block, *args, **kwargs)

    def _takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        names = self.dependencies.arguments
        if len(args) + len(kwargs) != len(names):
            return False
        values = [*args, *[kwargs.get(name) for name in names[len(args) :]]]
        return all([type(value) is kind for value, kind in zip(values, self.dependencies.types, strict=True)])

    def _is_valid(self) -> bool:
        block, needed = self.block, self.dependencies
        if [name for name, child in block._modules.items() if child is not None] != needed.children:
            return False
        for name, value in needed.attributes.items():
            if getattr(block, name, block) != value:  # the block stands for an attribute that does not exist any more
                return False
        for path in needed.norms:
            norm: Any = block.get_submodule(path)
            if not isinstance(norm, Norm | Folded) or len(norm.post_modules) or has_hooks(norm):
                return False
            if isinstance(norm, Norm) and norm.activation is not None:
                return False
        for path, (kind, settings) in needed.unused.items():
            module = block.get_submodule(path)
            if type(module) is not kind or has_hooks(module) or any([getattr(module, key) != settings[key] for key in settings]):
                return False
        return True

    def _compile(self) -> Callable[..., Any]:
        names = self.constants | {name: importlib.import_module(path) for name, path in self.modules.items()}
        exec(compile(self.source, f"<fused {type(self.block).__name__}>", "exec"), names)
        function: Callable[..., Any] = names["forward"]
        return function

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the compiled function."""
        return {name: value for name, value in vars(self).items() if name != "function"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.function = self._compile()
