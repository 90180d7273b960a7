"""Residual blocks are found in networks of every style, and one norm of each is replaced."""

from typing import Any

import pytest
import torch
from torch import nn

import anynorm
from anynorm.surgery.blocks import find_blocks
from anynorm.surgery.find import find_norms
from tests.surgery.networks import X, network


def conv(inputs, outputs, kernel=3, stride=1, groups=1):
    """Convolution, norm and activation, as in torchvision."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(outputs), nn.ReLU6()
    )


class Bottleneck(nn.Module):
    """The block of ResNet-50, with its branches as containers."""

    def __init__(self, inputs, width):
        super().__init__()
        last = [nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)]
        self.body = nn.Sequential(*conv(inputs, width, 1), *conv(width, width), *last)
        self.proj = (
            nn.Identity() if inputs == 4 * width else nn.Sequential(nn.Conv2d(inputs, 4 * width, 1), nn.BatchNorm2d(4 * width))
        )

    def forward(self, x):
        return (self.body(x) + self.proj(x)).relu_()


def bottlenecks():
    """A network of 16 bottlenecks after a stem of one convolution."""
    return nn.Sequential(conv(3, 8), *(Bottleneck(8 if k == 0 else 16, 4) for k in range(16)))


class InvertedResidual(nn.Module):
    """The block of MobileNetV2."""

    def __init__(self, inputs, outputs, stride, expand):
        super().__init__()
        self.use_res_connect = stride == 1 and inputs == outputs
        hidden = inputs * expand
        layers = [conv(inputs, hidden, 1)] if expand != 1 else []
        last = [nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.conv = nn.Sequential(*layers, conv(hidden, hidden, 3, stride, hidden), *last)

    def forward(self, x):
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


class ShuffleUnit(nn.Module):
    """The block of ShuffleNetV2."""

    def __init__(self, channels):
        super().__init__()
        half = channels // 2
        depthwise = [nn.Conv2d(half, half, 3, 1, 1, groups=half, bias=False), nn.BatchNorm2d(half)]
        self.branch2 = nn.Sequential(*conv(half, half, 1), *depthwise, *conv(half, half, 1))

    def forward(self, x):
        x1, x2 = x.chunk(2, dim=1)
        return torch.cat((x1, self.branch2(x2)), dim=1)


class Untraceable(nn.Module):
    """A block with control flow that torch.fx cannot trace, and a shortcut that only its name tells."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.shortcut = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return y + self.shortcut(x) if x.sum() > 0 else y


class UntraceableBlock(Untraceable):
    pass


def paths(report):
    return [row["path"] for row in report]


def test_bottlenecks_are_changed_at_every_position_and_distance():
    model = bottlenecks()
    blocks = find_blocks(model, find_norms(model))
    assert len(blocks) == 16
    assert all(len(block.norms) == 3 for block in blocks)
    for position, last in ((1, "1"), (2, "4"), (3, "7")):
        assert paths(anynorm.xbn(bottlenecks(), position=position))[0] == f"1.body.{last}"
    for every, numbers in ((2, [2, 4, 6, 8, 10, 12, 14, 16]), (4, [4, 8, 12, 16]), (8, [8, 16])):
        report = anynorm.xbn(bottlenecks(), every=every)
        assert [row["block"] for row in report] == numbers


def test_basic_blocks_get_the_nearest_group_number_and_the_stem_is_optional():
    model = network()
    report = anynorm.xbn(model, "gn:64", stem=True)
    assert paths(report) == ["1", "3.bn1", "4.bn1"]
    assert [row["new_norm"] for row in report] == ["gn:16", "gn:16", "gn:32"]
    assert "2 of 2 residual blocks are XBNBlocks (P2, D1)" in report.finding
    assert model(X).isfinite().all()
    assert paths(anynorm.xbn(network(), position=3)) == ["3.bn2", "4.bn2"]
    report.undo()
    assert isinstance(model[3].bn1, nn.BatchNorm2d)


def test_several_norms_of_each_block_are_replaced():
    report = anynorm.xbn(bottlenecks(), position=(1, 2), every=8)
    assert paths(report) == ["8.body.1", "8.body.4", "16.body.1", "16.body.4"]
    assert "2 of 16 residual blocks are XBNBlocks (P1, P2, D8)" in report.finding
    assert paths(anynorm.xbn(network(), position=(1, 2))) == ["3.bn1", "4.bn1"]
    with pytest.raises(anynorm.SurgeryError, match="position must be 1, 2 or 3, or several of them; got none"):
        anynorm.xbn(network(), position=())


def test_blocks_of_mobilenet_shufflenet_and_untraceable_ones_are_found():
    mobile = nn.Sequential(
        conv(3, 8), InvertedResidual(8, 8, 1, 1), InvertedResidual(8, 16, 2, 6), InvertedResidual(16, 16, 1, 6)
    )
    assert paths(anynorm.xbn(mobile, "in")) == ["1.conv.0.1", "2.conv.1.1", "3.conv.1.1"]
    shuffle = nn.Sequential(conv(3, 16), ShuffleUnit(16), ShuffleUnit(16))
    assert paths(anynorm.xbn(shuffle, "gn:4")) == ["1.branch2.4", "2.branch2.4"]
    untraceable = nn.Sequential(conv(3, 8), UntraceableBlock())
    assert paths(anynorm.xbn(untraceable, "ln")) == ["1.bn1"]


class CachedBias(nn.Module):
    """A block that stores a value of its first forward per device, as the attention of LeViT in timm."""

    def __init__(self):
        super().__init__()
        self.body, self.bias, self.cache = conv(8, 8), nn.Parameter(torch.zeros(2, 8, 1, 1)), {}

    def forward(self, x):
        self.bias_of_device = self.cache.setdefault(str(x.device), self.bias[1] + 0 * x.mean())
        return x + self.body(x) + self.bias_of_device


class CachedBiasAfterStem(nn.Module):
    """A network that is traced after its block."""

    def __init__(self):
        super().__init__()
        self.stem, self.block = conv(3, 8), nn.ModuleList([CachedBias()])

    def forward(self, x):
        return self.block[0](self.stem(x))


def test_blocks_that_cache_values_are_found_and_cache_none_of_the_trace():
    model = CachedBiasAfterStem().eval()
    block: Any = model.block[0]
    model(X)
    value = block.cache.copy()
    assert paths(anynorm.xbn(model, "gn:4")) == ["block.0.body.1"]
    assert block.cache == value
    assert block.bias_of_device is value["cpu"]


def test_a_network_without_residual_blocks_and_wrong_arguments_are_refused():
    plain = nn.Sequential(conv(3, 8), conv(8, 8))
    with pytest.raises(anynorm.SurgeryError, match=r"has no residual blocks.*anynorm\.convert"):
        anynorm.xbn(plain)
    with pytest.raises(anynorm.SurgeryError, match="position must be 1, 2 or 3; got 4 for block '3', which has 2 norms"):
        anynorm.xbn(network(), position=4)
    with pytest.raises(anynorm.SurgeryError, match="every must be an integer from 1 to the number of blocks, 2; got 3"):
        anynorm.xbn(network(), every=3)
    with pytest.raises(anynorm.SurgeryError, match="stem=True needs a norm before the first residual block"):
        anynorm.xbn(nn.Sequential(nn.Conv2d(3, 16, 1), network()[3]), stem=True)


def test_pre_activation_blocks_are_found():
    class PreAct(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn1, self.bn2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
            self.conv1, self.conv2, self.short = (nn.Conv2d(8, 8, 1) for _ in range(3))

        def forward(self, x):
            h = self.bn1(x).relu()
            return self.conv2(self.bn2(self.conv1(h)).relu()) + self.short(h)

    report = anynorm.xbn(nn.Sequential(nn.Conv2d(3, 8, 1), PreAct()), "ln", position=3)
    assert [row["path"] for row in report] == ["1.bn2"]


def test_a_u_net_has_no_residual_blocks():
    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.mid = (nn.Sequential(nn.Conv2d(c, 8, 3, padding=1), nn.BatchNorm2d(8)) for c in (3, 8))

        def forward(self, x):
            h = self.down(x)
            return torch.cat([h, self.mid(h)], 1)

    with pytest.raises(anynorm.SurgeryError, match="no residual blocks"):
        anynorm.xbn(UNet())
