"""Models by name, for images and classes of any shape, narrower or wider; they come with BatchNorm, and `place` puts others in.

A model of one's own is `package.module:factory`: called with `shape=` and `width=` where it takes them, else without.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable

from torch import nn

from anynorm.errors import DataError
from anynorm.io.checkpoints import import_object
from anynorm.models.densenet import densenet121
from anynorm.models.mlp import mlp
from anynorm.models.mobile import mobilenetv2, shufflenetv2
from anynorm.models.resnet import resnet10, resnet18, resnet26, resnet50, resnext50, small, wrn_10_2
from anynorm.models.shape import Shape, scaled

Factory = Callable[..., nn.Module]


def deep_mlp(shape: Shape, width: float = 1.0) -> nn.Module:
    """Make the xbn paper's network: 20 layers of 128 neurons."""
    inputs = shape.channels * shape.height * shape.width
    return mlp(inputs, shape.classes, norms=["bn"] * 20, width=scaled(128, width))


MODELS: dict[str, Factory] = {
    "small": small,
    "mlp": deep_mlp,
    "resnet10": resnet10,
    "resnet18": resnet18,
    "resnet26": resnet26,
    "resnet50": resnet50,
    "resnext50": resnext50,
    "wrn-10-2": wrn_10_2,
    "mobilenetv2": mobilenetv2,
    "shufflenetv2": shufflenetv2,
    "densenet121": densenet121,
}


def build(name: str, shape: Shape, width: float | None = None) -> nn.Module:
    """Make a model by its name; width None is the model's own.

    >>> type(build("mlp", Shape(1, 8, 8, 10))).__name__
    'Sequential'
    """
    options = {} if width is None else {"width": width}
    if name in MODELS:
        return MODELS[name](shape, **options)
    if ":" not in name:
        near = difflib.get_close_matches(name, MODELS, n=2, cutoff=0.4)
        hint = f" Near: {' '.join(near)}." if near else ""
        raise DataError(f"There is no model {name!r}.{hint} Known: {' '.join(MODELS)}, or package.module:factory.")
    factory = import_object(name)
    taken = inspect.signature(factory).parameters
    model = factory(**{key: value for key, value in {"shape": shape, **options}.items() if key in taken})
    if not isinstance(model, nn.Module):
        raise DataError(f"{name!r} gave a {type(model).__name__}, not an nn.Module.")
    return model
