"""The gradient balance of a generator during training (sabn sec. 3.1 and Fig. 2), as metrics of a step.

Eq. 4 compares the gradients of the losses of single images G(z_i, y_j). In eval mode an image is generated alone. In train mode
norms need a batch: the other images of the batch have classes and latent vectors of their own, which are the same for every y_j.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anynorm.diagnostics import gradient_balance
from anynorm.diagnostics.buffers import preserve_buffers

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


class Draw(NamedTuple):
    """A batch of latent vectors with labels, of which the first ones are compared.

    Attributes:
        latents: latent vectors (n, latent_size).
        labels: their labels (n,), used for all but the first `num_compared`.
        num_compared: number of images that get the class whose gradient is computed; their losses are averaged.
    """

    latents: Tensor
    labels: Tensor
    num_compared: int


def spread_classes(num_classes: int, count: int) -> list[int]:
    """Return `count` classes at equal distances, or all of them if `count` is 0 or larger than their number.

    >>> spread_classes(140, 4), spread_classes(3, 10)
    ([0, 35, 70, 105], [0, 1, 2])
    """
    count = min(count or num_classes, num_classes)
    return [index * num_classes // count for index in range(count)]


def measure_balance(
    generator: nn.Module,
    discriminator: nn.Module,
    draws: list[Draw],
    classes: list[int],
    losses: Callable[[nn.Module, Tensor, Tensor], Tensor],
) -> dict[str, Tensor]:
    """Return the gradient balance per stage of a generator, in train mode and in eval mode; both networks end in train mode.

    Every class has the same latent vectors. The mode decides whether norms use the statistics of the batch or the running
    statistics; the paper does not say which it used. Parameters and buffers stay as they are.

    Args:
        generator: the generator.
        discriminator: the discriminator of the loss, used in eval mode.
        draws: batches of latent vectors. Cosines are computed for each draw, then averaged.
        classes: the classes that are compared.
        losses: a function of generator, latent vectors and labels that returns the loss of each image, (n,).
    """

    def loss_of_class(network: nn.Module, draw: Draw, label: int) -> Tensor:
        count = draw.num_compared
        kept = len(draw.latents) if network.training else count
        labels = draw.labels[:kept].clone()
        labels[:count] = label
        return losses(network, draw.latents[:kept], labels)[:count].mean()

    by_class = [dict.fromkeys(classes, draw) for draw in draws]
    metrics: dict[str, Tensor] = {}
    try:
        discriminator.eval()
        with preserve_buffers(discriminator):
            for mode in MODES:
                for row in gradient_balance(generator.train(mode == "train"), by_class, loss_of_class):
                    metrics |= {
                        str(BalanceMetric(column, row["stage"], mode)): torch.tensor(row[column], device=draws[0].labels.device)
                        for column in COLUMNS
                    }
    finally:
        generator.train()
        discriminator.train()
    return metrics
