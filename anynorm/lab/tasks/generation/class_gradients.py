"""The gradient balance of a generator during training (sabn sec. 3.1 and Fig. 2), as metrics of a step."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anynorm.diagnostics import gradient_balance
from anynorm.diagnostics.buffers import preserve_buffers

MAX_CLASSES = 10
"""Number of classes whose gradients are compared, the first ones."""
COLUMNS = ("grad_norm_std", "relative_std", "g_inter")
MODES = ("train", "eval")


class BalanceMetric(NamedTuple):
    """A metric of the gradient balance. As text, it is the name of the metric of a run.

    Attributes:
        column: one of `COLUMNS`.
        stage: the path of a stage of the generator.
        mode: mode of the generator's norms, "train" or "eval".

    >>> metric = BalanceMetric("g_inter", "blocks.0", "eval")
    >>> str(metric), BalanceMetric.parse(str(metric)) == metric, BalanceMetric.parse("generator_loss")
    ('g_inter blocks.0 (eval mode)', True, None)
    """

    column: str
    stage: str
    mode: str

    def __str__(self) -> str:
        return f"{self.column} {self.stage} ({self.mode} mode)"

    @classmethod
    def parse(cls, name: str) -> BalanceMetric | None:
        """Return the metric of a name; None if the name is that of another metric."""
        match = re.fullmatch(rf"({'|'.join(COLUMNS)}) (.+) \(({'|'.join(MODES)}) mode\)", name)
        return cls(*match.groups()) if match else None


def measure_balance(
    generator: nn.Module,
    discriminator: nn.Module,
    latents: list[Tensor],
    num_classes: int,
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor],
) -> dict[str, Tensor]:
    """Return the gradient balance per stage of a generator, in train mode and in eval mode; both networks end in train mode.

    Every class has the same latent vectors. The mode decides whether norms use the statistics of a batch of one class or the
    running statistics of all classes; the paper does not say which it used. Parameters and buffers stay as they are.

    Args:
        generator: the generator.
        discriminator: the discriminator of the loss, used in eval mode.
        latents: batches of latent vectors.
        num_classes: number of classes.
        loss: a function of generator, latent vectors and labels.
    """

    def loss_of_class(network: nn.Module, z: Tensor, label: int) -> Tensor:
        return loss(network, z, torch.full((len(z),), label, device=z.device))

    draws = [dict.fromkeys(range(min(num_classes, MAX_CLASSES)), z) for z in latents]
    metrics: dict[str, Tensor] = {}
    try:
        discriminator.eval()
        with preserve_buffers(discriminator):
            for mode in MODES:
                for row in gradient_balance(generator.train(mode == "train"), draws, loss_of_class):
                    metrics |= {
                        str(BalanceMetric(column, row["stage"], mode)): torch.tensor(row[column], device=latents[0].device)
                        for column in COLUMNS
                    }
    finally:
        generator.train()
        discriminator.train()
    return metrics
