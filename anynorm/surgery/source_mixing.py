"""Norms that normalize by a mixture of source and target statistics while those of the target are estimated.

    s ← α s_source + (1 − α) s_batch        for the mean and the unbiased variance of each cut; the norm normalizes by s

So the norms after it receive the inputs that they will receive with mixed statistics, and their own statistics are those of these
inputs, as in Schneider et al. (2020). The equation is the update rule `Running(1 − α)`, started at the source statistics again
for every batch.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from anynorm.layers.norm import Norm


def mix_with_source(norm: Norm, estimator: Norm) -> None:
    """Make a norm normalize every input by the mixture of its present statistics and those of the input, from now on.

    Args:
        norm: in eval mode, with the source statistics and the update rule `Running(1 − α)`.
        estimator: a norm of the same spec in train mode, which follows the statistics of all inputs by its own update rule.
    """
    source = {name: buffer.clone() for name, buffer in norm.named_buffers(recurse=False)}

    def update(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        estimator.set_condition(norm._condition)
        estimator.normalize(*args, **kwargs)
        for name, value in source.items():
            norm.get_buffer(name).copy_(value)
        norm.training = True
        try:
            norm.normalize(*args, **kwargs)
        finally:
            norm.training = False

    norm.register_forward_pre_hook(update, with_kwargs=True)
