"""anynorm: any norm, in any model.

    import anynorm
    norm = anynorm.make("hn:32", 64)

The names of `anynorm.api` are those of `anynorm`. They are fetched at first use, so that `anynorm --help` need not wait
for torch.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anynorm.api import *  # noqa: F403
    from anynorm.api import __all__ as __all__
    from anynorm.errors import ConditionError as ConditionError
    from anynorm.errors import DataError as DataError
    from anynorm.errors import DiagnosticError as DiagnosticError
    from anynorm.errors import DiskError as DiskError
    from anynorm.errors import FoldError as FoldError
    from anynorm.errors import ShapeError as ShapeError
    from anynorm.errors import SpecError as SpecError
    from anynorm.errors import StateError as StateError
    from anynorm.errors import SurgeryError as SurgeryError

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module 'anynorm' has no attribute {name!r}")
    if find_spec(f"anynorm.{name}"):
        return import_module(f"anynorm.{name}")
    api = import_module("anynorm.api")
    globals().update({known: getattr(api, known) for known in [*api.__all__, "__all__"]})
    errors = import_module("anynorm.errors")
    if name not in globals() and hasattr(errors, name):
        return getattr(errors, name)
    if name not in globals():
        raise AttributeError(f"module 'anynorm' has no attribute {name!r}. It has: {' '.join(api.__all__)}.")
    return globals()[name]


def __dir__() -> list[str]:
    return [*import_module("anynorm.api").__all__, "__version__"]
