"""The gradient balance of a generator during training (sabn sec. 3.1 and Fig. 2), as metrics of a step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from anynorm.diagnostics import gradient_balance
from anynorm.diagnostics.buffers import preserve_buffers

MAX_CLASSES = 10
"""Number of classes whose gradients are compared, the first ones."""
COLUMNS = ("grad_norm_std", "relative_std", "g_inter")


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
            for mode, training in (("train", True), ("eval", False)):
                for row in gradient_balance(generator.train(training), draws, loss_of_class):
                    metrics |= {
                        f"{name} {row['stage']} ({mode} mode)": torch.tensor(row[name], device=latents[0].device)
                        for name in COLUMNS
                    }
    finally:
        generator.train()
        discriminator.train()
    return metrics
