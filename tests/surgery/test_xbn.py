"""Residual blocks are found in networks of every style, and one norm of each becomes batch-free."""

import pytest
import torch
from torch import nn

import anynorm
from anynorm.surgery.blocks import find_blocks
from anynorm.surgery.find import find_norms
from tests.surgery.test_convert import X, network


def conv(inputs, outputs, kernel=3, stride=1, groups=1):
    """A convolution, norm and activation in one, as torchvision writes them."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(outputs), nn.ReLU6()
    )


class Bottleneck(nn.Module):
    """ResNet-50's block, its branches as containers."""

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
    """MobileNetV2's block."""

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
    """ShuffleNetV2's block."""

    def __init__(self, channels):
        super().__init__()
        half = channels // 2
        depthwise = [nn.Conv2d(half, half, 3, 1, 1, groups=half, bias=False), nn.BatchNorm2d(half)]
        self.branch2 = nn.Sequential(*conv(half, half, 1), *depthwise, *conv(half, half, 1))

    def forward(self, x):
        x1, x2 = x.chunk(2, dim=1)
        return torch.cat((x1, self.branch2(x2)), dim=1)


class Flowing(nn.Module):
    """A block whose control flow cannot be traced, with a shortcut of another name."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.shortcut = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return y + self.shortcut(x) if x.sum() > 0 else y


class FlowingBlock(Flowing):
    pass


def taken(report):
    return [row["path"] for row in report]


def test_bottlenecks_at_each_position_and_distance():
    model = bottlenecks()
    blocks = find_blocks(model, find_norms(model))
    assert len(blocks) == 16
    assert all(len(block.norms) == 3 for block in blocks)
    for position, last in ((1, "1"), (2, "4"), (3, "7")):
        assert taken(anynorm.xbn(bottlenecks(), position=position))[0] == f"1.body.{last}"
    for every, numbers in ((2, [2, 4, 6, 8, 10, 12, 14, 16]), (4, [4, 8, 12, 16]), (8, [8, 16])):
        report = anynorm.xbn(bottlenecks(), every=every)
        assert [row["block"] for row in report] == numbers


def test_basic_blocks_clip_groups_and_the_stem_is_taken_when_asked():
    model = network()
    report = anynorm.xbn(model, "gn:64", stem=True)
    assert taken(report) == ["1", "3.bn1", "4.bn1"]
    assert [row["is"] for row in report] == ["gn:16", "gn:16", "gn:32"]
    assert "2 of 2 residual blocks are XBNBlocks (P2, D1)" in report.finding
    assert model(X).isfinite().all()
    assert taken(anynorm.xbn(network(), position=3)) == ["3.bn2", "4.bn2"]
    report.undo()
    assert isinstance(model[3].bn1, nn.BatchNorm2d)


def test_mobile_shuffle_and_untraceable_blocks_are_found():
    mobile = nn.Sequential(
        conv(3, 8), InvertedResidual(8, 8, 1, 1), InvertedResidual(8, 16, 2, 6), InvertedResidual(16, 16, 1, 6)
    )
    assert taken(anynorm.xbn(mobile, "in")) == ["1.conv.0.1", "2.conv.1.1", "3.conv.1.1"]
    shuffle = nn.Sequential(conv(3, 16), ShuffleUnit(16), ShuffleUnit(16))
    assert taken(anynorm.xbn(shuffle, "gn:4")) == ["1.branch2.4", "2.branch2.4"]
    flowing = nn.Sequential(conv(3, 8), FlowingBlock())
    assert taken(anynorm.xbn(flowing, "ln")) == ["1.bn1"]


def test_a_network_without_residual_blocks_and_wrong_positions_are_said():
    plain = nn.Sequential(conv(3, 8), conv(8, 8))
    with pytest.raises(anynorm.SurgeryError, match=r"has no residual blocks.*anynorm\.convert"):
        anynorm.xbn(plain)
    with pytest.raises(anynorm.SurgeryError, match="position=4 is not in block '3', which has 2 norms"):
        anynorm.xbn(network(), position=4)
    with pytest.raises(anynorm.SurgeryError, match="every=3 takes no block of 2"):
        anynorm.xbn(network(), every=3)
