"""One forward and backward pass over all micro-batches of a step, with statistics per micro-batch.

The result is that of gradient accumulation, except for rounding. Passes over a few small images consist of overhead: on one core,
16 passes over 2 CIFAR-10 images at 16 × 16 pixels take 4 times as long as one over 32 (ResNet-8).
"""

from __future__ import annotations

from torch import nn

from anynorm.lab.data.shape import DataShape
from anynorm.lab.models.resnet import BasicBlock, Bottleneck, WideBlock
from anynorm.lab.training.config import Config
from anynorm.layers.micro_batches import unsupported_reason
from anynorm.layers.norm import Norm

ENABLED = True
"""Whether passes are merged where that is possible. Read when a run starts: tests set it to False."""
MAX_POSITIONS = 2**17
"""Maximum samples × height × width of a pass. More micro-batches are not merged: users accumulate gradients to save memory."""
PER_SAMPLE = {
    nn.AdaptiveAvgPool2d, nn.AvgPool2d, nn.Conv2d, nn.Flatten, nn.Identity, nn.Linear, nn.MaxPool2d, nn.ReLU, nn.Sequential,
    BasicBlock, Bottleneck, WideBlock,
}  # fmt: skip
"""Modules whose output for a sample depends neither on other samples nor on random numbers."""


def is_supported(config: Config, model: nn.Module, shape: DataShape) -> bool:
    """Whether a step of a run can be one pass.

    It can if nothing but the statistics of norms depends on how samples are divided into micro-batches, and all norms support it.

    Args:
        config: the run.
        model: its network.
        shape: the shape of its images.
    """
    positions = config.grad_accum_steps * config.batch_size * shape.height * shape.width
    is_plain = config.precision == "32" and not config.mixup and not config.compile
    if config.grad_accum_steps == 1 or positions > MAX_POSITIONS or not is_plain:
        return False
    return all(
        unsupported_reason(module) is None if isinstance(module, Norm) else type(module) in PER_SAMPLE
        for module in model.modules()
    )
