"""Backbones: residual networks that return features at several resolutions, for detection and segmentation.

    image ─▶ stem ─▶ stage 1 ─▶ stage 2 ─▶ stage 3 ─▶ stage 4
                        │          │          │          │
                        ▼          ▼          ▼          ▼
                     features of the stages, finest first

A backbone is a classifier of `anynorm.lab.models` without its head, so it can load the weights of a trained classifier.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from anynorm.errors import DataError
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models import MODELS, build_model
from anynorm.lab.models.resnet import BasicBlock, Bottleneck


class Backbone(nn.Sequential):
    """The stem and stages of a residual network.

    Args:
        modules: the stem and the stages.

    Attributes:
        channels: number of channels of the features of each stage.
        strides: pixels of the image per position of the features of each stage.
    """

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__(*modules)
        self.channels: list[int] = []
        self.strides: list[int] = []
        stem, *stages = modules
        stride = _stride(stem)
        for stage in stages:
            stride *= _stride(stage)
            self.strides.append(stride)
            self.channels.append(_out_channels(stage))

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the features of each stage, finest first."""
        stem, *stages = self
        x = stem(x)
        features = []
        for stage in stages:
            x = stage(x)
            features.append(x)
        return features


def make_backbone(name: str, in_channels: int, width: float | None, image_size: int) -> Backbone:
    """Build the backbone of a residual network by the name of its classifier.

    Args:
        name: a ResNet or ResNeXt of `anynorm.lab.models.MODELS`, or `package.module:factory` of a model built like these.
        in_channels: number of channels of the images.
        width: multiplier of the number of channels; None for the default of the model.
        image_size: height and width of the images of the classifier. Up to 64 pixels, the first convolution has stride 1 and no
            pooling follows (see `anynorm.lab.models.resnet`), so that the weights of a classifier of small images can be loaded.

    Raises:
        DataError: if the model is not a residual network with stages.

    >>> backbone = make_backbone("resnet10", 3, 0.5, image_size=128)
    >>> backbone.channels, backbone.strides
    ([8, 16, 32, 64], [4, 8, 16, 32])
    """
    model = build_model(name, DataShape(in_channels, image_size, image_size, 2), width)
    entries = list(model.children())
    has_stages = isinstance(model, nn.Sequential) and all(_is_stage(entry) for entry in entries[1:-1])
    if not has_stages or len(entries) < 3:
        usable = " ".join(known for known in MODELS if known.startswith("res") and known != "resnet12")
        raise DataError(f"a backbone must be a residual network with stages; got {name!r}. Usable: {usable}.")
    return Backbone(*entries[:-1])


def load_backbone(backbone: nn.Module, weights: Mapping[str, Tensor], source: str = "the weights") -> None:
    """Load the weights of a classifier into a backbone with the same norms; the weights of its last layer are ignored.

    Args:
        backbone: a `Backbone`.
        weights: the state dict of the classifier.
        source: name of the source of the weights, for the error message.

    Raises:
        DataError: if a tensor is missing or has another shape, or belongs to norms that the backbone does not have.
    """
    expected = backbone.state_dict()
    wrong = [name for name, value in expected.items() if name not in weights or weights[name].shape != value.shape]
    if wrong:
        name = wrong[0]
        got = f"shape {tuple(weights[name].shape)}" if name in weights else "none"
        raise DataError(
            f"{source} must be those of a classifier with the stem, stages and norms of the backbone; {len(wrong)} of "
            f"{len(expected)} tensors do not fit, first {name!r}: expected shape {tuple(expected[name].shape)}, got {got}."
        )
    stages = {name for name, _ in backbone.named_children()}
    if extra := [name for name in weights if name.partition(".")[0] in stages and name not in expected]:
        raise DataError(
            f"{source} must have the norms of the backbone; they have {len(extra)} further tensors, first {extra[0]!r}."
        )
    backbone.load_state_dict({name: weights[name] for name in expected})


def _is_stage(module: nn.Module) -> bool:
    blocks: list[Any] = list(module) if isinstance(module, nn.Sequential) else []
    return bool(blocks) and all(isinstance(block, BasicBlock | Bottleneck) for block in blocks)


def _stride(module: nn.Module) -> int:
    """Return the stride of a stem or stage: the product of the strides of its layers, except layers of shortcuts."""
    stride = 1
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d) and "downsample" not in name:
            stride *= layer.stride[0] if isinstance(layer.stride, tuple) else int(layer.stride)
    return stride


def _out_channels(stage: Any) -> int:
    """Return the number of output channels of the last block of a stage."""
    return [layer for layer in stage[-1].children() if isinstance(layer, nn.Conv2d)][-1].out_channels
