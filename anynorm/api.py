"""The public surface, in one place. The errors are in `anynorm.errors`, and reached as `anynorm.SpecError` and so on too."""

from anynorm.comparison import compare
from anynorm.errors import AnynormError
from anynorm.layers.conditioning import condition
from anynorm.layers.norm import Norm
from anynorm.registry import (
    AdaIN,
    AuxBatchNorm,
    BatchGroupNorm,
    ConditionalBatchNorm,
    ExtendedNorm,
    GeneralBatchGroupNorm,
    HeteroNorm,
    PositionalNorm,
    SandwichAdaIN,
    SandwichAuxBatchNorm,
    SandwichBatchNorm,
    SwitchNorm,
    make,
    zoo,
)
from anynorm.surgery.convert import convert
from anynorm.surgery.fold import fold
from anynorm.surgery.freeze import freeze, split_decay, unfreeze
from anynorm.surgery.recalibrate import recalibrate
from anynorm.surgery.simplify import harden, merge
from anynorm.surgery.sync import sync
from anynorm.surgery.xbn import xbn

__all__ = [
    "AdaIN",
    "AnynormError",
    "AuxBatchNorm",
    "BatchGroupNorm",
    "ConditionalBatchNorm",
    "ExtendedNorm",
    "GeneralBatchGroupNorm",
    "HeteroNorm",
    "Norm",
    "PositionalNorm",
    "SandwichAdaIN",
    "SandwichAuxBatchNorm",
    "SandwichBatchNorm",
    "SwitchNorm",
    "compare",
    "condition",
    "convert",
    "fold",
    "freeze",
    "harden",
    "make",
    "merge",
    "recalibrate",
    "split_decay",
    "sync",
    "unfreeze",
    "xbn",
    "zoo",
]
