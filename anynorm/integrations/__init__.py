"""Adapters to other packages: one module per package, which is imported at first use.

timm, MONAI and mmengine build anynorm layers from their own configuration; Lightning and transformers call `recalibrate` and
`estimation_shift` while they train; Opacus checks anynorm layers. torchvision, segmentation_models_pytorch and detectron2 take
`anynorm.layer(spec)` as it is, and accelerate needs nothing.
"""
