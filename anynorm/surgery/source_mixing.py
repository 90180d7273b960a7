"""Normalization by a mixture of source and target statistics while the target statistics are estimated.

    s ← α s_source + (1 − α) s_batch        for the mean and the unbiased variance of each cut; the norm normalizes by s

So the target statistics of later norms are estimated from the inputs that these norms receive when earlier norms use mixed
statistics, as in Schneider et al. (2020). The equation is the update rule `Running(1 − α)`, reset to the source statistics before
every batch.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from anynorm.layers.norm import Norm


def mix_with_source(norm: Norm, estimator: Norm) -> None:
    """Register a hook with which a norm normalizes every input by the mixture of its source statistics and those of the input.

    Args:
        norm: a norm in eval mode, with the source statistics and the update rule `Running(1 − α)`.
        estimator: a norm of the same spec in train mode; it receives every input and updates its running statistics.
    """
    source = {name: buffer.clone() for name, buffer in norm.named_buffers(recurse=False)}

    def update(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        estimator.set_condition(norm._condition)
        estimator.set_mask(norm._mask)
        estimator.normalize(*args, **kwargs)
        for name, value in source.items():
            norm.get_buffer(name).copy_(value)
        norm.training = True
        try:
            norm.normalize(*args, **kwargs)
        finally:
            norm.training = False

    norm.register_forward_pre_hook(update, with_kwargs=True)
