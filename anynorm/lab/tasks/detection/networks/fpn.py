"""Feature pyramid (Lin et al. 2017): the semantics of the last stage at the resolution of each stage.

    p_k = output_k(lateral_k(c_k) + upsample(m_{k+1}))        m_k = the sum in brackets, c_k = features of stage k

Both convolutions have a norm and no nonlinearity.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d


class FPN(nn.Module):
    """A feature pyramid.

    Args:
        in_channels: channels of the last stages, finest first; earlier stages are not used.
        channels: channels of every level.
        num_extra_levels: levels beyond the last stage, each subsampled by 2 from the one before; 1 in the paper (P6,
            for proposals only).
    """

    def __init__(self, in_channels: Sequence[int], channels: int, num_extra_levels: int = 0) -> None:
        super().__init__()
        self.num_extra_levels = num_extra_levels
        self.lateral = nn.ModuleList(conv_norm(count, channels, 1) for count in in_channels)
        self.output = nn.ModuleList(conv_norm(channels, channels, 3) for _ in in_channels)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return the levels, finest first."""
        merged = [lateral(each) for lateral, each in zip(self.lateral, features[-len(self.lateral) :], strict=True)]
        for level in range(len(merged) - 2, -1, -1):
            merged[level] = merged[level] + interpolate(merged[level + 1], size=merged[level].shape[2:], mode="nearest")
        levels: list[Tensor] = [output(each) for output, each in zip(self.output, merged, strict=True)]
        for _ in range(self.num_extra_levels):
            levels.append(max_pool2d(levels[-1], 1, 2))
        return levels


def conv_norm(in_channels: int, out_channels: int, kernel_size: int) -> nn.Sequential:
    """Return a convolution without bias, and a norm."""
    conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels))


def conv_norm_relu(in_channels: int, out_channels: int, kernel_size: int = 3) -> nn.Sequential:
    """Return a convolution without bias, a norm, and a ReLU."""
    return conv_norm(in_channels, out_channels, kernel_size).append(nn.ReLU())


def init_predictor(layer: nn.Conv2d | nn.Linear, std: float) -> None:
    """Initialize a prediction layer with small normal weights and zero biases."""
    nn.init.normal_(layer.weight, std=std)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
