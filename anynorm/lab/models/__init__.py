"""Models by name, for images of any size and any number of classes, with a width multiplier.

Models are built with BatchNorm, `convnext` and `vit` with LayerNorm; `anynorm.lab.training.norm_layout.Layout` replaces it by
other norms. An architecture of a search space is also a model, such as nasbench201:3,0,1,2,4,3 (see `anynorm.lab.models.search`).
A custom model has the name `package.module:factory`; the factory is called with the keyword arguments `shape` (a `DataShape`) and
`width`, if it has them.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from anynorm.errors import DataError, unknown_name
from anynorm.io.checkpoints import call_with_known, import_object
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models.channels import scale_channels
from anynorm.lab.models.convnext import convnext
from anynorm.lab.models.densenet import densenet121
from anynorm.lab.models.mlp import mlp
from anynorm.lab.models.mobilenet import mobilenetv2
from anynorm.lab.models.resnet import (
    preact_resnet8,
    preact_resnet18,
    resnet10,
    resnet18,
    resnet20,
    resnet26,
    resnet50,
    resnet101,
    resnext50,
    resnext101,
    small,
    wrn_10_2,
)
from anynorm.lab.models.resnet12 import resnet12
from anynorm.lab.models.search import build_architecture, parse_space
from anynorm.lab.models.shufflenet import shufflenetv2
from anynorm.lab.models.vit import vit

Factory = Callable[..., nn.Module]


def deep_mlp(shape: DataShape, width: float = 1.0) -> nn.Module:
    """Build the MLP of the XBN paper: 20 hidden layers of 128 neurons."""
    in_features = shape.channels * shape.height * shape.width
    return mlp(in_features, shape.num_classes, norms=["bn"] * 20, width=scale_channels(128, width))


MODELS: dict[str, Factory] = {
    "small": small,
    "mlp": deep_mlp,
    "resnet10": resnet10,
    "resnet12": resnet12,
    "resnet18": resnet18,
    "resnet20": resnet20,
    "resnet26": resnet26,
    "resnet50": resnet50,
    "resnet101": resnet101,
    "resnext50": resnext50,
    "resnext101": resnext101,
    "wrn-10-2": wrn_10_2,
    "preact_resnet8": preact_resnet8,
    "preact_resnet18": preact_resnet18,
    "mobilenetv2": mobilenetv2,
    "shufflenetv2": shufflenetv2,
    "densenet121": densenet121,
    "convnext": convnext,
    "vit": vit,
}


def build_model(name: str, shape: DataShape, width: float | None = None) -> nn.Module:
    """Build a model by name.

    Args:
        name: A name of `MODELS`, an architecture such as nasbench201:3,0,1,2,4,3, or `package.module:factory`.
        shape: Shape of the images, and the number of classes.
        width: Multiplier of the number of channels; None for the default of the model.

    Raises:
        DataError: if the name is unknown, or the factory does not return an nn.Module.

    >>> type(build_model("mlp", DataShape(1, 8, 8, 10))).__name__
    'Sequential'
    """
    options = {} if width is None else {"width": width}
    if name in MODELS:
        return MODELS[name](shape, **options)
    if parse_space(name) is not None:
        return build_architecture(name, shape, width)
    if ":" not in name:
        raise DataError(unknown_name("model", name, MODELS, "package.module:factory"))
    model = call_with_known(name, import_object(name), {"shape": shape, **options})
    if not isinstance(model, nn.Module):
        raise DataError(f"{name!r} must return an nn.Module; got {type(model).__name__}.")
    return model
