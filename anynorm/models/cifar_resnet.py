"""ResNets of depth 6n + 2 for small images (He et al. 2016, sec. 4.2): three stages of basic blocks, zero-padded shortcuts.

Keys of the state_dict are those of the common pretrained networks for CIFAR-10.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from anynorm.registry import make

MakeNorm = Callable[[int], nn.Module]


def maker(norm: str | MakeNorm) -> MakeNorm:
    """Turn a spec into a function of the channel count; a function, or a class of torch's, stays."""
    return (lambda channels: make(norm, channels)) if isinstance(norm, str) else norm


class Block(nn.Module):
    """Two convolutions beside a shortcut that pads channels with zeros (option A)."""

    def __init__(self, inputs: int, width: int, *, stride: int, norm: MakeNorm) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), norm(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), norm(width)
        self.stride, self.extra = stride, (width - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Add the shortcut."""
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        shortcut = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.extra, self.extra))
        total: Tensor = y + shortcut
        return total.relu()


class CifarResNet(nn.Module):
    """A ResNet-20, -32, -44, -56 or -110.

    >>> sum(parameter.numel() for parameter in CifarResNet(20).parameters())
    269722
    """

    def __init__(self, depth: int, *, norm: str | MakeNorm = "bn", width: int = 16, inputs: int = 3, classes: int = 10) -> None:
        super().__init__()
        blocks, make_norm = (depth - 2) // 6, maker(norm)
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, 1, 1, bias=False), make_norm(width)
        stages = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(
                Block(before, after, stride=stride, norm=make_norm),
                *(Block(after, after, stride=1, norm=make_norm) for _ in range(blocks - 1)),
            )
            for before, after, stride in stages
        )
        self.linear = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Give logits."""
        y = self.layer3(self.layer2(self.layer1(self.bn1(self.conv1(x)).relu())))
        logits: Tensor = self.linear(y.mean((2, 3)))
        return logits
