"""Optimizers that scale the gradient down to a largest norm."""

from __future__ import annotations

import torch
from torch import nn

from anynorm.training.config import Config
from anynorm.training.task import make_optimizer_for


def clipping_optimizer(config: Config, parameters: list[nn.Parameter], max_norm: float) -> torch.optim.Optimizer:
    """Return the optimizer of a configuration for parameters, whose gradients are scaled so that their norm is at most a limit.

    Args:
        config: the run.
        parameters: what is optimized.
        max_norm: the limit; 0 for none. Processes have averaged the gradients before.
    """
    optimizer = make_optimizer_for(config, parameters, fused=False)  # fused updates would clip scaled gradients in 16 bit
    if max_norm:
        optimizer.register_step_pre_hook(lambda *_: clip_gradients(parameters, max_norm))
    return optimizer


def clip_gradients(parameters: list[nn.Parameter], limit: float) -> None:
    """Scale gradients so that their norm is at most a limit."""
    nn.utils.clip_grad_norm_(parameters, limit)
