"""Inflated 3-D residual networks (I3D, Carreira & Zisserman 2017), as in the baseline of Wang et al. (2018).

A 2-D network is converted to a network of videos (n, c, t, h, w): the kernels of convolutions get a temporal axis of length k,
and their weights are those of the 2-D kernel divided by k. So the features of a video of equal frames are those of the frame,
except near its ends, where frames are padded with zeros.

    stem             k = 5 for the 7 × 7 convolution, k = 3 for the 3 × 3 convolution of small images
    blocks           k = 3 in the first convolution of every second residual block, starting with the first: 3 × 1 × 1 in a
                     bottleneck, and 3 × 3 × 3 in a basic block, whose first convolution is 3 × 3
    other layers     k = 1

The number of frames can be halved at three places: by the convolution of the stem, by its pooling (if it has one), and by a
3 × 1 × 1 max pooling after the first stage. Wang et al. use all three places, from 32 frames to 4. In their public code, other
blocks have k = 3 (all of the first stage, the first, third, … of the next two, the second of the last), and pairs of frames are
pooled.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from anynorm.errors import DataError
from anynorm.lab.data.shape import DataShape
from anynorm.lab.models import build_model
from anynorm.lab.models.classifier import find_classifier
from anynorm.lab.models.resnet import BasicBlock, Bottleneck
from anynorm.layers.norm import Norm


def make_video_model(
    name: str,
    shape: DataShape,
    width: float | None = None,
    *,
    temporal_blocks: int = 2,
    temporal_stride: int = 1,
    dropout: float = 0.0,
) -> nn.Module:
    """Build the inflated network of a 2-D network by name.

    Args:
        name: a residual network of `anynorm.lab.models.MODELS`, or `package.module:factory` of a model built like these.
        shape: shape of a frame, and the number of classes.
        width: multiplier of the number of channels; None for the default of the model.
        temporal_blocks, temporal_stride: see `inflate`.
        dropout: dropout probability of the features before the last layer.

    Raises:
        DataError: if the network cannot be inflated.

    >>> import torch
    >>> model = make_video_model("resnet10", DataShape(3, 32, 32, 6), width=0.5, temporal_stride=2)
    >>> model(torch.zeros(2, 3, 8, 32, 32)).shape
    torch.Size([2, 6])
    """
    model = inflate(build_model(name, shape, width), temporal_blocks=temporal_blocks, temporal_stride=temporal_stride)
    if dropout:
        path, layer = find_classifier(model)
        parent, _, last = path.rpartition(".")
        setattr(model.get_submodule(parent), last, _DropoutLinear(layer, dropout))
    return model


class _DropoutLinear(nn.Linear):
    """A linear layer with dropout of its inputs; its parameters have the same names as in `nn.Linear`."""

    def __init__(self, layer: Any, probability: float) -> None:
        super().__init__(layer.in_features, layer.out_features)
        self.weight, self.bias, self.probability = layer.weight, layer.bias, probability

    def forward(self, x: Tensor) -> Tensor:
        """Apply dropout to x, then the linear layer."""
        return super().forward(nn.functional.dropout(x, self.probability, self.training))


def inflate(model: nn.Module, *, temporal_blocks: int = 2, temporal_stride: int = 1) -> nn.Module:
    """Convert a 2-D residual network, with its weights, to a 3-D network; the 2-D network is not changed.

    Args:
        model: a sequence of stem, stages of residual blocks, and head, such as `resnet18`. Norms of anynorm are kept, because
            they support any number of dimensions.
        temporal_blocks: period of the blocks with temporal kernels of length 3, such as 2 for every second block; 0 for no
            temporal kernels, neither in blocks nor in the stem (C2D).
        temporal_stride: number of input frames per frame of the features: 1, 2 or 4; with the stem of large images also 8.

    Raises:
        DataError: if the model is not a residual network with stages, or has a layer that cannot be inflated.
    """
    if temporal_blocks < 0:
        raise DataError(f"temporal_blocks must be 0 or more; got {temporal_blocks}.")
    blocks = [path for path, module in model.named_modules() if isinstance(module, BasicBlock | Bottleneck)]
    if not isinstance(model, nn.Sequential) or not blocks:
        raise DataError(
            f"only a residual network of anynorm.lab.models can be inflated; got a {type(model).__name__} without its blocks."
        )
    result = copy.deepcopy(model)
    stem: Any = result[0]
    pools = [module for module in stem if isinstance(module, nn.MaxPool2d)]
    strides = _split_stride(temporal_stride, 3 if pools else 2)
    lengths = {f"{path}.conv1": 3 for path in blocks[::temporal_blocks]} if temporal_blocks else {}
    if temporal_blocks:
        lengths["0.0"] = 5 if stem[0].kernel_size[0] >= 7 else 3
    for path, module in list(result.named_modules()):
        stride = strides[0] if path == "0.0" else strides[1] if module in pools else 1
        if (inflated := _inflate_layer(path, module, lengths.get(path, 1), stride)) is not module:
            parent, _, name = path.rpartition(".")
            setattr(result.get_submodule(parent), name, inflated)
    if strides[-1] > 1:
        first_stage: Any = result[1]
        first_stage.append(nn.MaxPool3d((3, 1, 1), (strides[-1], 1, 1), (1, 0, 0)))
    return result


def _split_stride(stride: int, places: int) -> list[int]:
    """Return the temporal stride, 1 or 2, of each place, such that their product is `stride`; the first places have stride 2.

    >>> _split_stride(4, 3)
    [2, 2, 1]
    """
    usable = [2**k for k in range(places + 1)]
    if stride not in usable:
        raise DataError(f"temporal_stride of this network must be one of {' '.join(map(str, usable))}; got {stride}.")
    return [2 if stride >= 2 ** (k + 1) else 1 for k in range(places)]


def _inflate_layer(path: str, layer: nn.Module, length: int, stride: int) -> nn.Module:
    """Return the 3-D equivalent of a layer, or the layer itself if it supports any number of dimensions."""
    if isinstance(layer, nn.Conv2d):
        options: dict[str, Any] = {
            "kernel_size": (length, *layer.kernel_size),
            "stride": (stride, *layer.stride),
            "padding": (length // 2, *_pair(layer.padding)),
            "dilation": (1, *layer.dilation),
        }
        conv = nn.Conv3d(layer.in_channels, layer.out_channels, groups=layer.groups, bias=layer.bias is not None, **options)
        conv.load_state_dict({name: _inflate_weight(value, length) for name, value in layer.state_dict().items()})
        return conv
    if isinstance(layer, nn.BatchNorm2d):
        norm = nn.BatchNorm3d(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
        norm.load_state_dict(layer.state_dict())
        return norm
    if isinstance(layer, nn.MaxPool2d):
        reduces = stride > 1
        sizes = [_pair(value) for value in (layer.kernel_size, layer.stride, layer.padding)]
        return nn.MaxPool3d((3 if reduces else 1, *sizes[0]), (stride, *sizes[1]), (int(reduces), *sizes[2]))
    if isinstance(layer, nn.AdaptiveAvgPool2d) and layer.output_size == 1:
        return nn.AdaptiveAvgPool3d(1)
    if isinstance(layer, Norm):
        layer.input_dims = tuple(dims + 1 for dims in layer.input_dims)
    if type(layer).__name__.endswith("2d"):
        raise DataError(f"'{path}' cannot be inflated: {type(layer).__name__} has no 3-D form here.")
    return layer


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _inflate_weight(weight: Tensor, length: int) -> Tensor:
    """Expand a 2-D kernel (o, i, h, w) to (o, i, length, h, w) and divide it by `length`; return other tensors unchanged."""
    return weight.unsqueeze(2).repeat(1, 1, length, 1, 1) / length if weight.dim() == 4 else weight


def load_inflated(model: nn.Module, weights: Mapping[str, Tensor], source: str = "the weights") -> None:
    """Load the weights of a 2-D classifier into its inflated network; the weights of its last layer are ignored.

    Args:
        model: an inflated network with the norms of the classifier.
        weights: the state dict of the classifier.
        source: name of the source of the weights, for the error message.

    Raises:
        DataError: if a tensor is missing or has another shape, or belongs to norms that the network does not have.
    """
    classifier = find_classifier(model).path
    inflated = {}
    wrong = []
    for name, expected in model.state_dict().items():
        if name.startswith(f"{classifier}."):
            continue
        value = weights.get(name)
        if value is not None and value.dim() == 4 and expected.dim() == 5:
            value = _inflate_weight(value, expected.shape[2])
        if value is None or value.shape != expected.shape:
            got = "none" if value is None else f"shape {tuple(value.shape)}"
            wrong.append(f"{name!r}: expected shape {tuple(expected.shape)} after inflation, got {got}")
        else:
            inflated[name] = value
    if wrong:
        raise DataError(
            f"{source} must be those of a classifier with the stem, stages and norms of the network; {len(wrong)} tensors do not "
            f"fit, first {wrong[0]}."
        )
    extra = [name for name in weights if name not in inflated and not name.startswith(f"{classifier}.")]
    if extra:
        raise DataError(
            f"{source} must have the norms of the network; they have {len(extra)} further tensors, first {extra[0]!r}."
        )
    model.load_state_dict(inflated, strict=False)
