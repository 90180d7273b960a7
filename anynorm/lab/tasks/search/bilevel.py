"""Gradients of architecture parameters α through one step of the weights w (Liu et al. 2019, "DARTS", sec. 2.3).

The search minimizes L_val(w*(α), α), where w*(α) minimizes L_train(w, α). One step approximates it, w' = w − ξ ∇_w L_train:

    first order      ∇_α L_val(w, α)                                                               ξ = 0
    second order     ∇_α L_val(w', α) − ξ ∇²_{α,w} L_train(w, α) v,      v = ∇_w' L_val(w', α)     ξ = the learning rate

The product with v is a central difference: (∇_α L_train(w + εv, α) − ∇_α L_train(w − εv, α)) / 2ε, with ε = 0.01 / ‖v‖. In the
release of DARTS, w' also has momentum and weight decay; here it is the w' of the paper's equation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Loss = Callable[[], Tensor]
"""Returns the loss of a batch with the current parameters."""
DIFFERENCE = 0.01
"""ε ‖v‖."""


@contextmanager
def frozen(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Exclude parameters from autograd inside a `with` block."""
    before = [parameter.requires_grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter, requires_grad in zip(parameters, before, strict=True):
            parameter.requires_grad_(requires_grad)


@contextmanager
def shifted(parameters: Sequence[nn.Parameter], directions: Sequence[Tensor], scale: float | Tensor) -> Iterator[None]:
    """Add scale · direction to parameters inside a `with` block; their exact values are restored on exit."""
    values = [parameter.detach().clone() for parameter in parameters]
    try:
        with torch.no_grad():
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(direction * scale)
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, values, strict=True):
                parameter.copy_(value)


def second_order_gradients(
    training_loss: Loss, validation_loss: Loss, weights: Sequence[nn.Parameter], alphas: Sequence[nn.Parameter], lr: float
) -> list[Tensor]:
    """Return the gradients of α through one unrolled step of the weights.

    Args:
        training_loss: L_train; called three times.
        validation_loss: L_val; called once.
        weights: w; their values are not changed.
        alphas: α.
        lr: ξ.
    """
    with frozen(alphas):
        step = _gradients(training_loss(), weights)
    with shifted(weights, step, -lr):
        gradients = _gradients(validation_loss(), [*alphas, *weights])
    direct, v = gradients[: len(alphas)], gradients[len(alphas) :]
    norm = torch.stack([direction.norm() for direction in v]).norm()
    epsilon = DIFFERENCE / norm.clamp_min(torch.finfo(norm.dtype).tiny)
    ends = []
    for sign in (1, -1):
        with shifted(weights, v, sign * epsilon), frozen(weights):
            ends.append(_gradients(training_loss(), alphas))
    return [own - lr * (plus - minus) / (2 * epsilon) for own, plus, minus in zip(direct, *ends, strict=True)]


def _gradients(loss: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True))
