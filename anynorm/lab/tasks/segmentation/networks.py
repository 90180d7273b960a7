"""Segmentation networks: a dilated residual network with a pyramid head and an auxiliary head.

    image ─▶ stem ─▶ stage 1 ─▶ stage 2 ─▶ stage 3 (dilation 2) ─▶ stage 4 (dilation 4) ─▶ head ─▶ logits, resized to the image
                                             └──▶ auxiliary head ─▶ auxiliary logits, in training

Heads: pyramid pooling (PSPNet, Zhao et al. 2017) and atrous spatial pyramid pooling (DeepLab v3, Chen et al. 2017). A norm
follows every convolution except the last layer and the convolutions of maps pooled to 1 × 1, which have a bias instead. For a map
of 1 × 1, a batch statistic is computed from one value per sample (with one sample per device, from one value, which BN rejects in
training), and a group statistic from one value per channel. The published networks have norms there, with batches of 16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from anynorm.errors import SpecError
from anynorm.lab.models.backbone import Backbone

BINS = (1, 2, 3, 6)
"""Height and width of the pooled maps of PSPNet."""
RATES = (12, 24, 36)
"""Dilations of DeepLab v3 at stride 8; if a dilation exceeds the size of the map, its convolution acts as a 1 × 1 convolution."""


def dilate(backbone: Backbone, num_stages: int = 2) -> Backbone:
    """Replace the strides of the last stages by dilation, in place; weights are not changed.

    A convolution of stride 2 gets stride 1, and the dilation of all later convolutions is doubled. At the positions of the
    strided network, the features are the same.

    Args:
        backbone: a residual network.
        num_stages: number of last stages to dilate.

    Returns:
        The same backbone, with new `strides`.

    >>> from anynorm.lab.models.backbone import make_backbone
    >>> dilate(make_backbone("resnet10", 3, 0.5, image_size=128)).strides
    [4, 8, 8, 8]
    """
    first = len(backbone.strides) - num_stages
    if not 0 < first < len(backbone.strides):
        raise SpecError(f"num_stages must be from 1 to {len(backbone.strides) - 1}; got {num_stages}.")
    dilation = 1
    for index, stage in enumerate(list(backbone)[1:]):
        if index < first:
            continue
        for name, layer in stage.named_modules():
            if not isinstance(layer, nn.Conv2d):
                continue
            stride, layer.stride = layer.stride[0], (1, 1)
            if "downsample" in name:  # the 1 × 1 convolution of the shortcut, parallel to the convolution with the stride
                continue
            layer.dilation = (dilation, dilation)
            layer.padding = (dilation * (layer.kernel_size[0] // 2),) * 2
            dilation *= stride
        backbone.strides[index] = backbone.strides[first - 1]
    return backbone


class SegmentationNetwork(nn.Module):
    """A dilated backbone with a head and an auxiliary head.

    Args:
        backbone: a residual network; it is dilated in place.
        num_classes: number of classes.
        head: name of the head, a key of `HEADS`.
        dropout: probability of dropping a channel before the last convolutions.

    Raises:
        SpecError: if `head` is not a key of `HEADS`.
    """

    def __init__(self, backbone: Backbone, num_classes: int, head: str = "psp", dropout: float = 0.1) -> None:
        super().__init__()
        if head not in HEADS:
            raise SpecError(f"head must be one of {' '.join(HEADS)}; got {head!r}.")
        self.backbone = dilate(backbone)
        self.head = HEADS[head](backbone.channels[-1], num_classes, dropout)
        self.aux_head = AuxiliaryHead(backbone.channels[-2], num_classes, dropout)

    @property
    def stride(self) -> int:
        """Number of pixels of the image per position of the last features."""
        return self.backbone.strides[-1]

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return logits (n, num_classes, h, w) for images (n, c, h, w); in train mode, a pair of logits and auxiliary logits."""
        *_, before, last = self.backbone(x)
        logits = resize(self.head(last), x.shape[-2:])
        if not self.training:
            return logits
        return logits, resize(self.aux_head(before), x.shape[-2:])


class PyramidPooling(nn.Module):
    """The head of PSPNet: features, concatenated with their means over the cells of coarse grids.

    Args:
        in_channels: number of channels of the features.
        num_classes: number of classes.
        dropout: probability of dropping a channel.
        bins: number of rows and columns of each grid.
    """

    def __init__(self, in_channels: int, num_classes: int, dropout: float = 0.1, bins: Sequence[int] = BINS) -> None:
        super().__init__()
        width = max(1, in_channels // len(bins))
        self.bins = tuple(bins)
        self.branches = nn.ModuleList(_branch(in_channels, width, has_norm=bin_count > 1) for bin_count in bins)
        self.classifier = _classifier(in_channels + width * len(bins), max(1, in_channels // 4), num_classes, dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of features."""
        maps = [x]
        for bin_count, branch in zip(self.bins, self.branches, strict=True):
            maps.append(resize(branch(nn.functional.adaptive_avg_pool2d(x, bin_count)), x.shape[-2:]))
        logits: Tensor = self.classifier(torch.cat(maps, 1))
        return logits


class AtrousPyramid(nn.Module):
    """The head of DeepLab v3: convolutions with several dilations, concatenated with the mean over the map.

    Args:
        in_channels: number of channels of the features.
        num_classes: number of classes.
        dropout: probability of dropping a channel.
        rates: the dilations.
    """

    def __init__(self, in_channels: int, num_classes: int, dropout: float = 0.1, rates: Sequence[int] = RATES) -> None:
        super().__init__()
        width = max(1, in_channels // 4)
        kernels = [(1, 1), *((3, rate) for rate in rates)]
        self.branches = nn.ModuleList(_branch(in_channels, width, kernel, rate) for kernel, rate in kernels)
        self.image_branch = _branch(in_channels, width, has_norm=False)
        self.classifier = _classifier(width * (len(kernels) + 1), width, num_classes, dropout, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of features."""
        image = self.image_branch(nn.functional.adaptive_avg_pool2d(x, 1)).expand(-1, -1, *x.shape[-2:])
        logits: Tensor = self.classifier(torch.cat([*(branch(x) for branch in self.branches), image], 1))
        return logits


class AuxiliaryHead(nn.Sequential):
    """A convolution, a norm and a classifier on the features before the last stage (PSPNet, sec. 3.3)."""

    def __init__(self, in_channels: int, num_classes: int, dropout: float = 0.1) -> None:
        super().__init__(*_classifier(in_channels, max(1, in_channels // 4), num_classes, dropout))


HEADS: dict[str, Callable[[int, int, float], nn.Module]] = {"psp": PyramidPooling, "aspp": AtrousPyramid}
"""Heads by name: functions of the number of channels, the number of classes and the dropout probability."""


def resize(x: Tensor, size: Sequence[int]) -> Tensor:
    """Resize maps (n, c, h, w) by bilinear interpolation."""
    if x.shape[-2:] == tuple(size):
        return x
    return nn.functional.interpolate(x, tuple(size), mode="bilinear", align_corners=False)


def _branch(in_channels: int, width: int, kernel_size: int = 1, dilation: int = 1, *, has_norm: bool = True) -> nn.Sequential:
    """Build a convolution with same padding, a norm and a ReLU; without a norm, the convolution has a bias."""
    padding = dilation * (kernel_size // 2)
    conv = nn.Conv2d(in_channels, width, kernel_size, padding=padding, dilation=dilation, bias=not has_norm)
    return nn.Sequential(conv, nn.BatchNorm2d(width), nn.ReLU()) if has_norm else nn.Sequential(conv, nn.ReLU())


def _classifier(in_channels: int, width: int, num_classes: int, dropout: float, kernel_size: int = 3) -> nn.Sequential:
    """Build a branch, dropout of channels, and the convolution that returns logits."""
    return nn.Sequential(
        *_branch(in_channels, width, kernel_size), nn.Dropout2d(dropout), nn.Conv2d(width, num_classes, kernel_size=1)
    )
