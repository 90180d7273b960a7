"""The source code that a recipe executes to measure a cell: its `measure` function and what it calls in the recipes."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

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
    classes = {each for config in configs_in(settings) for each in task_class(config.task).__mro__}
    modules = {each.__module__ for each in classes if each.__module__.startswith("anynorm.lab.tasks.")}
    rooms = sorted({"/".join(module.split(".")[1:4]) for module in modules})
    return code_version(tuple(rooms), tuple(executed_sources(measure)))


def executed_sources(function: Callable[..., Any]) -> list[str]:
    """Return the source of a function and of all functions and classes of recipes that it names, directly or indirectly."""
    pending: list[Any] = [function]
    sources: dict[str, str] = {}
    while pending:
        each = pending.pop()
        while isinstance(each, partial):
            pending += [value for value in each.args if _is_of_recipe(value)]
            each = each.func
        name = f"{each.__module__}.{each.__qualname__}"
        if name in sources:
            continue
        sources[name] = textwrap.dedent(inspect.getsource(each))
        namespace = each.__globals__ if isinstance(each, FunctionType) else vars(inspect.getmodule(each))
        names = {node.id for node in ast.walk(ast.parse(sources[name])) if isinstance(node, ast.Name)}
        pending += [namespace[each] for each in sorted(names & namespace.keys()) if _is_of_recipe(namespace[each])]
    return [sources[name] for name in sorted(sources)]


def _is_of_recipe(value: Any) -> bool:
    has_source = isinstance(value, FunctionType | type | partial)
    module = value.func.__module__ if isinstance(value, partial) else getattr(value, "__module__", "") or ""
    return has_source and module.startswith(RECIPES)
