"""Adapters to other packages: one module per package, which is imported at first use.

timm, MONAI and mmengine build anynorm layers from their own configuration; Lightning and transformers call `recalibrate`,
`estimation_shift` and the steps of `morph` while they train; Opacus checks anynorm layers. torchvision,
segmentation_models_pytorch and detectron2 take `anynorm.layer(spec)` as it is, and accelerate needs nothing.
"""

from typing import TYPE_CHECKING

from anynorm.lazy import lazy_names

if TYPE_CHECKING:
    __all__: list[str]
    from anynorm.integrations import lightning as lightning
    from anynorm.integrations import mmengine as mmengine
    from anynorm.integrations import monai as monai
    from anynorm.integrations import opacus as opacus
    from anynorm.integrations import timm as timm
    from anynorm.integrations import transformers as transformers

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = lazy_names(__name__)
