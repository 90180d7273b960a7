"""anynorm: any norm, in any model.

    import anynorm
    norm = anynorm.make("hn:32", 64)

Public names are imported at first use: `import anynorm` and `anynorm --help` do not import torch, and `anynorm.make` imports
neither the training nor the plotting code.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anynorm.errors import AnynormError as AnynormError
    from anynorm.errors import ConditionError as ConditionError
    from anynorm.errors import DataError as DataError
    from anynorm.errors import DiagnosticError as DiagnosticError
    from anynorm.errors import DiskError as DiskError
    from anynorm.errors import FoldError as FoldError
    from anynorm.errors import ReadError as ReadError
    from anynorm.errors import ShapeError as ShapeError
    from anynorm.errors import SpecError as SpecError
    from anynorm.errors import StateError as StateError
    from anynorm.errors import SurgeryError as SurgeryError
    from anynorm.lab.comparison.comparison import compare as compare
    from anynorm.lab.training.task import Metric as Metric
    from anynorm.lab.training.task import Task as Task
    from anynorm.layers.conditioning import condition as condition
    from anynorm.layers.norm import Norm as Norm
    from anynorm.norms import AdaIN as AdaIN
    from anynorm.norms import AuxBatchNorm as AuxBatchNorm
    from anynorm.norms import BatchGroupNorm as BatchGroupNorm
    from anynorm.norms import BatchNorm as BatchNorm
    from anynorm.norms import ConditionalBatchNorm as ConditionalBatchNorm
    from anynorm.norms import ExtendedNorm as ExtendedNorm
    from anynorm.norms import GeneralBatchGroupNorm as GeneralBatchGroupNorm
    from anynorm.norms import GroupNorm as GroupNorm
    from anynorm.norms import HeteroNorm as HeteroNorm
    from anynorm.norms import InstanceNorm as InstanceNorm
    from anynorm.norms import LayerNorm as LayerNorm
    from anynorm.norms import PositionalNorm as PositionalNorm
    from anynorm.norms import SandwichAdaIN as SandwichAdaIN
    from anynorm.norms import SandwichAuxBatchNorm as SandwichAuxBatchNorm
    from anynorm.norms import SandwichBatchNorm as SandwichBatchNorm
    from anynorm.norms import SwitchNorm as SwitchNorm
    from anynorm.registry import layer as layer
    from anynorm.registry import make as make
    from anynorm.registry import zoo as zoo
    from anynorm.surgery.convert import convert as convert
    from anynorm.surgery.domains import copy_domain as copy_domain
    from anynorm.surgery.fold import fold as fold
    from anynorm.surgery.freeze import freeze as freeze
    from anynorm.surgery.freeze import split_decay as split_decay
    from anynorm.surgery.freeze import unfreeze as unfreeze
    from anynorm.surgery.recalibrate import recalibrate as recalibrate
    from anynorm.surgery.simplify import harden as harden
    from anynorm.surgery.simplify import merge as merge
    from anynorm.surgery.sync import sync as sync
    from anynorm.surgery.xbn import xbn as xbn

__version__ = "0.2.0"

_NAMES = {
    "lab.comparison.comparison": "compare",
    "errors": "AnynormError ConditionError DataError DiagnosticError DiskError FoldError ReadError ShapeError SpecError "
    "StateError SurgeryError",
    "norms": "AdaIN AuxBatchNorm BatchGroupNorm BatchNorm ConditionalBatchNorm ExtendedNorm GeneralBatchGroupNorm "
    "GroupNorm HeteroNorm InstanceNorm LayerNorm PositionalNorm SandwichAdaIN SandwichAuxBatchNorm SandwichBatchNorm SwitchNorm",
    "layers.conditioning": "condition",
    "layers.norm": "Norm",
    "registry": "layer make zoo",
    "lab.training.task": "Metric Task",
    "surgery.convert": "convert",
    "surgery.domains": "copy_domain",
    "surgery.fold": "fold",
    "surgery.freeze": "freeze split_decay unfreeze",
    "surgery.recalibrate": "recalibrate",
    "surgery.simplify": "harden merge",
    "surgery.sync": "sync",
    "surgery.xbn": "xbn",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(import_module(f"anynorm.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    if not name.startswith("__") and find_spec(f"anynorm.{name}"):
        return import_module(f"anynorm.{name}")
    raise AttributeError(f"module 'anynorm' has no attribute {name!r}. Public names: {' '.join(__all__)}.")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
