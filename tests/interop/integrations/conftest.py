"""Import packages once with their warnings ignored: warnings of their own imports, about torch, are not the tests' concern."""

import warnings
from importlib import import_module

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for name in (
        "mmcv.cnn",
        "opacus",
        "monai.networks.nets",
        "lightning.pytorch",
        "pytorch_lightning",
        "transformers",
        "accelerate",
    ):
        import_module(name)
