"""Networks for small devices: MobileNetV2 (Sandler et al. 2018) and ShuffleNetV2 (Ma et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anynorm.models.shape import Shape, scaled


def conv(
    inputs: int, outputs: int, size: int, *, stride: int = 1, groups: int = 1, act: type[nn.Module] | None = nn.ReLU
) -> nn.Sequential:
    """Make a convolution that keeps the image's size at stride 1, a norm, and an activation or none."""
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([act()] if act else []))


class Inverted(nn.Module):
    """Widens, convolves each channel on its own, and narrows; beside a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, expand: int) -> None:
        super().__init__()
        inner = inputs * expand
        widen = [conv(inputs, inner, 1, act=nn.ReLU6)] if expand > 1 else []
        deep = conv(inner, inner, 3, stride=stride, groups=inner, act=nn.ReLU6)
        self.body = nn.Sequential(*widen, deep, conv(inner, outputs, 1, act=None))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Add the shortcut, where there is one."""
        y: Tensor = self.body(x)
        return x + y if self.adds else y


def mobilenetv2(shape: Shape, width: float = 1.0) -> nn.Module:
    """Make a MobileNetV2; on small images three of its five strides are left out."""
    #       expand, channels, blocks, stride, stride on small images
    rows = [
        (1, 16, 1, 1, 1),
        (6, 24, 2, 2, 1),
        (6, 32, 3, 2, 2),
        (6, 64, 4, 2, 2),
        (6, 96, 3, 1, 1),
        (6, 160, 3, 2, 1),
        (6, 320, 1, 1, 1),
    ]
    inputs = scaled(32, width)
    layers: list[nn.Module] = [conv(shape.channels, inputs, 3, stride=1 if shape.is_small else 2, act=nn.ReLU6)]
    for expand, channels, blocks, stride, small_stride in rows:
        outputs = scaled(channels, width)
        for index in range(blocks):
            step = (small_stride if shape.is_small else stride) if index == 0 else 1
            layers.append(Inverted(inputs, outputs, stride=step, expand=expand))
            inputs = outputs
    last = scaled(1280, max(1.0, width))
    end = [
        conv(inputs, last, 1, act=nn.ReLU6),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(last, shape.classes),
    ]
    return nn.Sequential(*layers, *end)


class Shuffled(nn.Module):
    """Two branches of half the channels, joined and shuffled; at stride 1 the left one passes as it is."""

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        self.splits = stride == 1
        left = [] if self.splits else [conv(inputs, inputs, 3, stride=stride, groups=inputs, act=None), conv(inputs, half, 1)]
        first = half if self.splits else inputs
        self.left = nn.Sequential(*left)
        self.right = nn.Sequential(
            conv(first, half, 1), conv(half, half, 3, stride=stride, groups=half, act=None), conv(half, half, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Join what both branches make, channels of one after channels of the other in turn."""
        a, b = x.chunk(2, dim=1) if self.splits else (x, x)
        both = torch.stack([self.left(a), self.right(b)], dim=2)
        return both.flatten(1, 2)


def shufflenetv2(shape: Shape, width: float = 1.5) -> nn.Module:
    """Make a ShuffleNetV2, ×1.5 as in hn Table 3; widths of the paper are those of ×0.5, ×1.0, ×1.5 and ×2.0."""
    known = {0.5: (48, 96, 192, 1024), 1.0: (116, 232, 464, 1024), 1.5: (176, 352, 704, 1024), 2.0: (244, 488, 976, 2048)}
    *stages, last = known.get(width) or (*(scaled(size, width / 1.5, 16) for size in known[1.5][:3]), 1024)
    first = conv(shape.channels, 24, 3, stride=1 if shape.is_small else 2)
    layers: list[nn.Module] = [first, *([] if shape.is_small else [nn.MaxPool2d(3, 2, 1)])]
    inputs = 24
    for outputs, blocks in zip(stages, (4, 8, 4), strict=True):
        layers += [Shuffled(inputs if k == 0 else outputs, outputs, stride=2 if k == 0 else 1) for k in range(blocks)]
        inputs = outputs
    return nn.Sequential(*layers, conv(inputs, last, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, shape.classes))
