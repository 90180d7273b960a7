"""The source code that a recipe executes to measure a cell: its `measure` function, and what it names in the recipes."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from anynorm.lab.recipes.support.settings import Settings, configs_in
from anynorm.lab.tasks import task_class
from anynorm.lab.training.code_version import code_version

RECIPES = "anynorm.lab.recipes."


def measure_version(measure: Callable[..., Any], settings: Settings) -> str:
    """Return the hash of the code that a measurement executes.

    Args:
        measure: the function that measures a cell.
        settings: the settings of the recipe, which name the tasks that it trains.
    """
    return code_version(_rooms(settings), tuple(executed_sources(measure)))


def training_version(settings: Settings) -> str:
    """Return the hash of the code that trains the runs of a recipe. Recipes with the same one share runs."""
    return code_version(_rooms(settings))


def _rooms(settings: Settings) -> tuple[str, ...]:
    """Return the folders of the tasks that settings name, and of the tasks that these extend."""
    classes = {each for config in configs_in(settings) for each in task_class(config.task).__mro__}
    modules = {each.__module__ for each in classes if each.__module__.startswith("anynorm.lab.tasks.")}
    return tuple(sorted({"/".join(module.split(".")[1:4]) for module in modules}))


def executed_sources(function: Callable[..., Any]) -> list[str]:
    """Return the source of a function and of all functions, classes and constants of recipes that it names, also indirectly."""
    pending: list[Any] = [function]
    sources: dict[str, str] = {}
    while pending:
        each = pending.pop()
        while isinstance(each, partial):
            pending += [value for value in each.args if _is_of_recipe(value)]
            each = each.func
        if isinstance(each, _Constant):
            name, source, module = f"{each.module.__name__}.{each.name}", each.source, each.module
        else:
            name, module = f"{each.__module__}.{each.__qualname__}", sys.modules[each.__module__]
            source = textwrap.dedent(inspect.getsource(each))
        if name not in sources:
            sources[name] = source
            pending += _named_in(source, module)
    return [sources[name] for name in sorted(sources)]


class _Constant(NamedTuple):
    """A value that a module of a recipe assigns to a name."""

    module: ModuleType
    name: str
    source: str


def _named_in(source: str, module: ModuleType) -> Iterator[Any]:
    """Yield the functions, classes and constants of recipes that source code of a module names."""
    namespace = vars(module)
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        owner = namespace.get(node.value.id)  # module.function
        if isinstance(owner, ModuleType) and owner.__name__.startswith(RECIPES) and hasattr(owner, node.attr):
            value = getattr(owner, node.attr)
            yield from [value] if _is_of_recipe(value) else _constants(node.attr, owner)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for name in sorted(names & namespace.keys()):
        if _is_of_recipe(namespace[name]):
            yield namespace[name]
        elif not isinstance(namespace[name], ModuleType):
            yield from _constants(name, module)


def _constants(name: str, module: ModuleType) -> Iterator[_Constant]:
    """Yield the assignment of a name in a module of a recipe, or in the one from which the module imports it."""
    if not module.__name__.startswith(RECIPES) or not module.__file__:
        return
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(each, ast.Name) and each.id == name for target in targets for each in ast.walk(target)):
                yield _Constant(module, name, ast.unparse(node))
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module in sys.modules:
                    yield from _constants(alias.name, sys.modules[node.module])


def _is_of_recipe(value: Any) -> bool:
    has_source = isinstance(value, FunctionType | type | partial)
    module = value.func.__module__ if isinstance(value, partial) else getattr(value, "__module__", "") or ""
    return has_source and module.startswith(RECIPES)
