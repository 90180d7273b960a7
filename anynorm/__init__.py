"""anynorm: any norm, in any model.

    import anynorm
    norm = anynorm.make("hn:32", 64)

The names below are public, and the names in `__all__` of those that are packages. They are imported at first use:
`import anynorm` and `anynorm --help` do not import torch, and `anynorm.make` imports neither the training nor the plotting code.
"""

from typing import TYPE_CHECKING

from anynorm.lazy import lazy_names

if TYPE_CHECKING:
    __all__: list[str]
    from anynorm import diagnostics as diagnostics
    from anynorm import draw as draw
    from anynorm import integrations as integrations
    from anynorm import kernels as kernels
    from anynorm import lab as lab
    from anynorm.core.cuts import ALL as ALL
    from anynorm.core.cuts import Cut as Cut
    from anynorm.core.spec import NormSpec as NormSpec
    from anynorm.core.update_rules import Cumulative as Cumulative
    from anynorm.core.update_rules import Frozen as Frozen
    from anynorm.core.update_rules import Pooled as Pooled
    from anynorm.core.update_rules import Running as Running
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
    from anynorm.io.checkpoints import read_state_dict as read_state_dict
    from anynorm.kernels.interface import BatchStats as BatchStats
    from anynorm.lab.comparison.compare import compare as compare
    from anynorm.lab.tasks.run import train as train
    from anynorm.lab.training.config import Config as Config
    from anynorm.lab.training.task import Metric as Metric
    from anynorm.lab.training.task import Task as Task
    from anynorm.layers.baselines.batch_renorm import BatchRenorm as BatchRenorm
    from anynorm.layers.baselines.group_whitening import GroupWhitening as GroupWhitening
    from anynorm.layers.baselines.group_whitening import GroupWhiteningZCA as GroupWhiteningZCA
    from anynorm.layers.baselines.ibn import InstanceBatchNorm as InstanceBatchNorm
    from anynorm.layers.baselines.ilm import MetaAdaIN as MetaAdaIN
    from anynorm.layers.baselines.ilm import MetaGroupNorm as MetaGroupNorm
    from anynorm.layers.baselines.ilm import MetaInstanceNorm as MetaInstanceNorm
    from anynorm.layers.baselines.kalman import BatchKalmanNorm as BatchKalmanNorm
    from anynorm.layers.baselines.modenorm import ModeNorm as ModeNorm
    from anynorm.layers.baselines.pointwise import DynamicErf as DynamicErf
    from anynorm.layers.baselines.pointwise import DynamicTanh as DynamicTanh
    from anynorm.layers.baselines.sparse_switch import SparseSwitchNorm as SparseSwitchNorm
    from anynorm.layers.conditioning import condition as condition
    from anynorm.layers.masking import mask as mask
    from anynorm.layers.morphing import Ramp as Ramp
    from anynorm.layers.norm import CustomNorm as CustomNorm
    from anynorm.layers.norm import Norm as Norm
    from anynorm.layers.registered import GroupedNorm as GroupedNorm
    from anynorm.layers.registered import RegisteredNorm as RegisteredNorm
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
    from anynorm.norms import RMSNorm as RMSNorm
    from anynorm.norms import SandwichAdaIN as SandwichAdaIN
    from anynorm.norms import SandwichAuxBatchNorm as SandwichAuxBatchNorm
    from anynorm.norms import SandwichBatchNorm as SandwichBatchNorm
    from anynorm.norms import SwitchNorm as SwitchNorm
    from anynorm.norms import same_cut as same_cut
    from anynorm.registry import layer as layer
    from anynorm.registry import make as make
    from anynorm.registry import parse as parse
    from anynorm.registry import zoo as zoo
    from anynorm.sharing.pretrained import load_pretrained as load_pretrained
    from anynorm.sharing.pretrained import push_to_hub as push_to_hub
    from anynorm.sharing.pretrained import save_pretrained as save_pretrained
    from anynorm.surgery.accumulate import Accumulation as Accumulation
    from anynorm.surgery.accumulate import accumulate as accumulate
    from anynorm.surgery.adapters import NormInfo as NormInfo
    from anynorm.surgery.adapters import read_norm as read_norm
    from anynorm.surgery.adapters import register as register
    from anynorm.surgery.convert import convert as convert
    from anynorm.surgery.distill import distill as distill
    from anynorm.surgery.domains import copy_domain as copy_domain
    from anynorm.surgery.fold import fold as fold
    from anynorm.surgery.freeze import freeze as freeze
    from anynorm.surgery.freeze import split_decay as split_decay
    from anynorm.surgery.freeze import unfreeze as unfreeze
    from anynorm.surgery.fuse import fuse as fuse
    from anynorm.surgery.morph import Morph as Morph
    from anynorm.surgery.morph import morph as morph
    from anynorm.surgery.pool_statistics import pool_statistics as pool_statistics
    from anynorm.surgery.recalibrate import recalibrate as recalibrate
    from anynorm.surgery.report import SurgeryReport as SurgeryReport
    from anynorm.surgery.simplify import harden as harden
    from anynorm.surgery.simplify import merge as merge
    from anynorm.surgery.sync import sync as sync
    from anynorm.surgery.tiles import tiled as tiled
    from anynorm.surgery.tiles import tiles as tiles
    from anynorm.surgery.to_rms import to_rms as to_rms
    from anynorm.surgery.xbn import xbn as xbn
    from anynorm.table import Table as Table

__version__ = "0.3.0"

if not TYPE_CHECKING:  # a `__getattr__` would hide misspelled names from type checkers
    __all__, __getattr__, __dir__ = lazy_names(__name__)
