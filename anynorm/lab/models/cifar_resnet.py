"""ResNets of depth 6n + 2 for CIFAR images (He et al. 2016, sec. 4.2): three stages of basic blocks with zero-padded shortcuts.

The state_dict has the keys of the common pretrained networks for CIFAR-10.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from anynorm.registry import layer

NormFactory = Callable[[int], nn.Module]


def norm_factory(norm: str | NormFactory) -> NormFactory:
    """Convert a spec to a function that returns a norm for a number of channels; a function or class is returned unchanged."""
    return layer(norm) if isinstance(norm, str) else norm


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions with a shortcut that pads missing channels with zeros (option A of the paper)."""

    def __init__(self, in_channels: int, width: int, *, stride: int, norm: NormFactory) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(in_channels, width, 3, stride, 1, bias=False), norm(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), norm(width)
        self.stride, self.extra_channels = stride, (width - in_channels) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(body(x) + shortcut(x))."""
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        shortcut = nn.functional.pad(
            x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.extra_channels, self.extra_channels)
        )
        summed: Tensor = y + shortcut
        return summed.relu()


class CifarResNet(nn.Module):
    """A CIFAR ResNet.

    Args:
        depth: Number of layers with weights: 20, 32, 44, 56 or 110.
        norm: A spec, or a function that returns a norm for a number of channels.
        width: Number of channels of the first stage.
        in_channels: Number of channels of the images.
        num_classes: Number of logits.

    >>> sum(parameter.numel() for parameter in CifarResNet(20).parameters())
    269722
    """

    def __init__(
        self, depth: int, *, norm: str | NormFactory = "bn", width: int = 16, in_channels: int = 3, num_classes: int = 10
    ) -> None:
        super().__init__()
        num_blocks, make_norm = (depth - 2) // 6, norm_factory(norm)
        self.conv1, self.bn1 = nn.Conv2d(in_channels, width, 3, 1, 1, bias=False), make_norm(width)
        stages = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(
                BasicBlock(before, after, stride=stride, norm=make_norm),
                *(BasicBlock(after, after, stride=1, norm=make_norm) for _ in range(num_blocks - 1)),
            )
            for before, after, stride in stages
        )
        self.linear = nn.Linear(4 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, num_classes)."""
        y = self.layer3(self.layer2(self.layer1(self.bn1(self.conv1(x)).relu())))
        logits: Tensor = self.linear(y.mean((2, 3)))
        return logits
