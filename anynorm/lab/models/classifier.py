"""The last layer of a classifier (an `nn.Linear` or a cosine classifier), and the features that are its input."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from anynorm.diagnostics.observe import record_inputs
from anynorm.errors import SurgeryError
from anynorm.lab.models.cosine import CosineLinear
from anynorm.surgery.modes import eval_mode

BATCH_SIZE = 256
TOLERANCE = 1e-3
"""Maximum difference of the features of an image between two batches due to rounding, relative to their largest value."""


class Classifier(NamedTuple):
    """The last layer of a model and its path."""

    path: str
    module: nn.Linear | CosineLinear


def find_classifier(model: nn.Module, path: str | None = None) -> Classifier:
    """Return the last layer of a model: the module at `path`, or by default the last `nn.Linear` or `CosineLinear`.

    Raises:
        SurgeryError: if the model has no such layer, or the module at `path` has another type.
    """
    modules = dict(model.named_modules())
    if path is not None:
        module = modules.get(path)
        if not isinstance(module, nn.Linear | CosineLinear):
            got = "no module" if module is None else f"a {type(module).__name__}"
            raise SurgeryError(f"classifier must be the path of an nn.Linear or CosineLinear; '{path}' is {got}.")
        return Classifier(path, module)
    found = [Classifier(name, module) for name, module in modules.items() if isinstance(module, nn.Linear | CosineLinear)]
    if not found:
        raise SurgeryError(
            f"This {type(model).__name__} has no classifier: no module is an nn.Linear or anynorm.lab.models.cosine.CosineLinear."
        )
    return found[-1]


def extract_features(model: nn.Module, images: Tensor, *, classifier: str | None = None, batch_size: int = BATCH_SIZE) -> Tensor:
    """Return the features of images, (n, c): the inputs of the last layer in eval mode. The model is not changed.

    Args:
        model: the model.
        images: a batch of inputs of the model.
        classifier: path of the last layer; see `find_classifier`.
        batch_size: maximum number of images per forward pass.

    Raises:
        SurgeryError: if the input of the last layer is not one vector per image.
    """
    layer = find_classifier(model, classifier)
    with eval_mode(model):
        return torch.cat([features_and_logits(model, layer, part)[0] for part in torch.split(images, batch_size)])


def batch_dependence(model: nn.Module, image: Tensor, *, classifier: str | None = None) -> float:
    """Return the relative change of the features of an image, in eval mode, when the other images of its batch change.

    The features are compared in a batch of the image twice, and in a batch of the image and zeros. The change is relative to the
    largest value. A change larger than `TOLERANCE` is not due to rounding.

    Args:
        model: the model; it is not changed.
        image: a batch of one input of the model.
        classifier: path of the last layer; see `find_classifier`.
    """
    others = (image, torch.zeros_like(image))
    one, other = (extract_features(model, torch.cat([image, each]), classifier=classifier)[0] for each in others)
    return float((one - other).abs().max() / torch.maximum(one.abs().max(), other.abs().max()).clamp(min=1e-12))


def features_and_logits(model: nn.Module, layer: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features of images, (n, c), and the output of the model, from one forward pass in the current mode.

    Raises:
        SurgeryError: if the input of the last layer is not one vector per image.
    """
    with record_inputs(layer.module) as inputs:
        logits: Tensor = model(images)
    expected = (len(images), layer.module.in_features)
    if len(inputs) != 1 or inputs[0].shape != expected:
        got = ", ".join(str(tuple(x.shape)) for x in inputs) or "no call"
        raise SurgeryError(
            f"the classifier '{layer.path}' must be called once per forward pass, with features of shape {expected}; got {got}. "
            'Name another layer: classifier="fc".'
        )
    return inputs[0], logits
