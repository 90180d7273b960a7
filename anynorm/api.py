"""The public surface, in one place."""

from anynorm.core.condition import condition
from anynorm.core.norm import Norm
from anynorm.core.sync import sync
from anynorm.errors import AnynormError, ConditionError, ShapeError, SpecError
from anynorm.rows import (
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

__all__ = [
    "AdaIN",
    "AnynormError",
    "AuxBatchNorm",
    "BatchGroupNorm",
    "ConditionError",
    "ConditionalBatchNorm",
    "ExtendedNorm",
    "GeneralBatchGroupNorm",
    "HeteroNorm",
    "Norm",
    "PositionalNorm",
    "SandwichAdaIN",
    "SandwichAuxBatchNorm",
    "SandwichBatchNorm",
    "ShapeError",
    "SpecError",
    "SwitchNorm",
    "condition",
    "make",
    "sync",
    "zoo",
]
