"""Packages that anynorm works with and does not depend on."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from anynorm.errors import AnynormError


class MissingPackageError(AnynormError, ImportError):
    """Raised when a package that an integration needs is not installed."""


def import_optional(name: str, package: str) -> Any:
    """Import a module of a package that anynorm does not depend on.

    Args:
        name: the name of the module.
        package: the name under which pip installs it.

    Raises:
        MissingPackageError: if the module cannot be imported.

    >>> import_optional("math", "math").pi > 3
    True
    """
    try:
        return import_module(name)
    except (ImportError, RuntimeError) as error:  # torchvision without operators raises RuntimeError
        raise MissingPackageError(f"This integration needs {name}, which cannot be imported: pip install {package}.") from error


def base_class(name: str, *modules: str) -> type:
    """Return a class of the first module that can be imported, trying loaded modules first; `object` if none can.

    >>> base_class("Fraction", "missing_package", "fractions")
    <class 'fractions.Fraction'>
    """
    for module in sorted(modules, key=lambda module: module not in sys.modules):
        try:
            found: type = getattr(import_module(module), name)
        except (ImportError, RuntimeError):
            continue
        return found
    return object


def check_base(base: type, package: str) -> None:
    """Check that a base class is not the placeholder `object` of `base_class`.

    Raises:
        MissingPackageError: if it is.
    """
    if base is object:
        raise MissingPackageError(f"This callback needs {package}, which cannot be imported: pip install {package}.")
