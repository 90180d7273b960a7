"""Import of public names at first use, so that importing a package loads nothing.

The public names of a package are the imports in the block `if TYPE_CHECKING:` of its `__init__.py`: type checkers and this module
read the same lines.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def public_modules(package: str) -> dict[str, str]:
    """Return the module of each public name of a package.

    >>> public_modules("anynorm")["Cut"]
    'anynorm.core.cuts'
    """
    loader: Any = sys.modules[package].__loader__
    tree = ast.parse(loader.get_source(package))
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def lazy_names(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package whose public names are imported at first use.

    Args:
        package: the package, `__name__` in its `__init__.py`. A name that it imports from itself is a subpackage.
    """
    modules = public_modules(package)

    def get_attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}. Public names: {' '.join(sorted(modules))}.")
        if modules[name] == package:
            return import_module(f"{package}.{name}")
        value = getattr(_import_module(modules[name], f"{package}.{name}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return sorted(modules), get_attribute, lambda: sorted(modules)


def _import_module(module: str, name: str) -> Any:
    """Import the module of a public name; if a package of the lab is missing, the error names the extra."""
    from anynorm.errors import DataError

    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "anynorm" or not module.startswith("anynorm.lab."):
            raise
        raise DataError(f"{name} needs {missing}: pip install 'anynorm[lab]'.") from error
