"""Heads of a detector: class, box and mask of a region.

With a feature pyramid, a region has 7 × 7 features for class and box, and 14 × 14 for the mask. Without one (C4: Ren et al. 2015,
He et al. 2016), it has 14 × 14 features of the third stage; the fourth stage is a part of the box head, and the mask head
continues from its output.
"""

from __future__ import annotations

from torch import Tensor, nn

from anynorm.lab.tasks.detection.networks.fpn import conv_norm_relu, init_predictor
from anynorm.lab.tasks.detection.networks.rpn import RPN

FPN_RESOLUTION, C4_RESOLUTION, MASK_RESOLUTION = 7, 14, 14


class BoxHead(nn.Module):
    """Class and box of a region.

    Args:
        body: layers from the feature map of a region to a feature map.
        vector: layers from this map to a feature vector.
        num_features: length of the vector.
        num_classes: number of classes without background, which is the last class.
        resolution: height and width of the features of a region.
    """

    def __init__(self, body: nn.Module, vector: nn.Module, num_features: int, *, num_classes: int, resolution: int) -> None:
        super().__init__()
        self.resolution, self.num_classes = resolution, num_classes
        self.body, self.vector = body, vector
        self.classes = nn.Linear(num_features, num_classes + 1)
        self.deltas = nn.Linear(num_features, 4 * num_classes)
        init_predictor(self.classes, std=0.01)
        init_predictor(self.deltas, std=0.001)

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (k, classes + 1) and boxes (k, classes, 4) of regions from the output of `body`."""
        vector = self.vector(features)
        return self.classes(vector).float(), self.deltas(vector).view(len(vector), -1, 4).float()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and boxes of regions."""
        return self.predict(self.body(x))


def make_box_head(in_channels: int, num_classes: int, *, num_convs: int, num_features: int) -> BoxHead:
    """Return the box head of a pyramid: convolutions and one hidden layer ("4conv1fc"), or two hidden layers ("2fc").

    Args:
        in_channels: channels of the pyramid, and of the convolutions.
        num_classes: number of classes without background.
        num_convs: number of convolutions with norms; with 0, the head has two hidden layers and no norm.
        num_features: size of the hidden layers.
    """
    convs = [conv_norm_relu(in_channels, in_channels) for _ in range(num_convs)]
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(in_channels * FPN_RESOLUTION**2, num_features), nn.ReLU()]
    if not num_convs:
        layers += [nn.Linear(num_features, num_features), nn.ReLU()]
    vector = nn.Sequential(*layers)
    return BoxHead(nn.Sequential(*convs), vector, num_features, num_classes=num_classes, resolution=FPN_RESOLUTION)


def make_c4_box_head(stage: nn.Module, channels: int, num_classes: int) -> BoxHead:
    """Return the box head without a pyramid: the last stage of a backbone, which returns `channels` channels, and pooling."""
    vector = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return BoxHead(stage, vector, channels, num_classes=num_classes, resolution=C4_RESOLUTION)


class MaskHead(nn.Sequential):
    """Masks of a region, one per class, at twice the resolution of its features: convolutions with norms, and a transposed one.

    Args:
        in_channels: channels of the features of a region.
        channels: channels of the convolutions.
        num_classes: number of classes without background.
        num_convs: number of convolutions; 4 in the paper with a pyramid, 0 without one.
    """

    def __init__(self, in_channels: int, channels: int, num_classes: int, num_convs: int) -> None:
        widths = [in_channels, *[channels] * num_convs]
        convs = [conv_norm_relu(before, channels) for before in widths[:-1]]
        deconv, last = nn.ConvTranspose2d(widths[-1], channels, 2, 2), nn.Conv2d(channels, num_classes, 1)
        super().__init__(nn.Sequential(*convs), deconv, nn.ReLU(), last)
        nn.init.kaiming_normal_(deconv.weight, mode="fan_out", nonlinearity="relu")
        init_predictor(last, std=0.01)


class Heads(nn.Module):
    """The heads of a detector: `rpn`, `box` and, for Mask R-CNN, `mask`.

    Args:
        rpn: the region proposal network.
        box: the box head.
        mask: the mask head; None for a detector without masks.
        mask_after_box: whether the mask head gets the output of the body of the box head (C4).
    """

    def __init__(self, rpn: RPN, box: BoxHead, mask: nn.Module | None, *, mask_after_box: bool) -> None:
        super().__init__()
        self.rpn, self.box, self.mask, self.mask_after_box = rpn, box, mask, mask_after_box
