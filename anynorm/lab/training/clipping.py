"""Optimizers with gradient clipping by norm."""

from __future__ import annotations

import torch
from torch import nn

from anynorm.lab.training.config import Config
from anynorm.lab.training.task import make_optimizer_for_parameters


def clipping_optimizer(config: Config, parameters: list[nn.Parameter], max_norm: float) -> torch.optim.Optimizer:
    """Return the optimizer of a configuration, with gradients clipped to a maximum norm.

    Args:
        config: the run.
        parameters: the parameters to optimize.
        max_norm: maximum norm of the gradients, after they are averaged over processes; 0 for no clipping.
    """
    optimizer = make_optimizer_for_parameters(
        config, parameters, fused=False
    )  # fused updates would clip scaled gradients in 16 bit
    if max_norm:
        optimizer.register_step_pre_hook(lambda *_: clip_gradients(parameters, max_norm))
    return optimizer


def clip_gradients(parameters: list[nn.Parameter], limit: float) -> None:
    """Clip gradients to a maximum norm."""
    nn.utils.clip_grad_norm_(parameters, limit)
