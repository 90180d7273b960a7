"""The optimization of a distillation: Adam with a cosine schedule, until a budget ends or the held-out error does not improve.

The error of outputs y with respect to those of the original t is ‖y − t‖² / ‖t − mean(t)‖², over the samples of a minibatch: 0
for the same outputs, 1 for constant ones. It is used for logits too: on a ResNet-20, a few images dominate the KL divergence of a
minibatch, and its gradient undid what the stages had learned.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from anynorm.errors import SurgeryError
from anynorm.progress import Bar
from anynorm.surgery.distill_data import tensors_of

WARMUP = 0.05  # of the budget
EVALUATIONS = 10  # of the held-out part, during the budget
PATIENCE = (
    4  # evaluations without improvement after which the training ends; the start does not count, since the warm-up disturbs it
)
MIN_VARIANCE = 1e-12
Loss = Callable[[], Tensor]


def relative_error(outputs: Any, targets: Any) -> Tensor:
    """Return the squared error of nested outputs, relative to the variance of the targets; the mean over the tensors.

    Raises:
        SurgeryError: if the two do not have the same tensors.
    """
    pairs = list(zip(tensors_of(outputs), tensors_of(targets), strict=False))
    shapes = [[tuple(tensor.shape) for tensor in tensors_of(value)] for value in (outputs, targets)]
    if shapes[0] != shapes[1] or not pairs:
        raise SurgeryError(
            f"the model and its original must return tensors of the same shapes; got {shapes[0]} and {shapes[1]}. "
            "The model is unchanged."
        )
    errors = [functional.mse_loss(y.float(), t.float()) / t.float().var(correction=0).clamp(min=MIN_VARIANCE) for y, t in pairs]
    return torch.stack(errors).mean()


@dataclass
class Budget:
    """A number of steps, or a duration in seconds, of which a part may be used up."""

    steps: int | None
    seconds: float | None
    step: int = 0
    used_seconds: float = 0.0

    def fraction(self) -> float:
        """Return the part of the budget that is used up, from 0 to 1."""
        used, total = (self.used_seconds, self.seconds) if self.steps is None else (self.step, self.steps)
        return min(1.0, used / total) if total else 1.0


def learning_rate(lr: float, fraction: float) -> float:
    """Return the learning rate: a linear warm-up, and half a cosine to 0."""
    return lr * min(1.0, (fraction + 1e-3) / WARMUP) * 0.5 * (1 + math.cos(math.pi * fraction))


@dataclass
class Optimization:
    """The training of some parameters.

    Attributes:
        module: the module whose best state is kept.
        parameters: the parameters that are trained.
        loss: returns the loss of a new minibatch.
        held_out_error: returns the error on the held-out part.
        budget: the budget.
        lr: the highest learning rate.
        name: the name in messages and in the progress bar.
        save: is called with the state after each evaluation.
    """

    module: nn.Module
    parameters: list[nn.Parameter]
    loss: Loss
    held_out_error: Callable[[], float]
    budget: Budget
    lr: float
    name: str
    save: Callable[[dict[str, Any]], None] = lambda _: None
    errors: list[float] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)

    def run(self, generator: torch.Generator, state: dict[str, Any] | None = None) -> None:
        """Train, and leave the module in the state with the smallest held-out error.

        Args:
            generator: random numbers of the minibatches.
            state: a state that `save` was called with, to resume.

        Raises:
            SurgeryError: if the loss becomes NaN or infinite.
        """
        optimizer = torch.optim.Adam(self.parameters, self.lr)
        if state is None:
            self._evaluate()
        else:
            self._load(state, optimizer, generator)
        with Bar(f"distilling {self.name}", 1.0) as bar:
            while self.budget.fraction() < 1 and not self._stalls():
                self._step(optimizer)
                fraction = self.budget.fraction()
                bar.update(fraction)
                if fraction * EVALUATIONS >= len(self.errors):
                    self._evaluate()
                    self.save(self._state(optimizer, generator))
        self.module.load_state_dict(self.best)

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        start = time.monotonic()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(self.lr, self.budget.fraction())
        optimizer.zero_grad(set_to_none=True)
        loss = self.loss()
        if not torch.isfinite(loss):
            raise SurgeryError(
                f"the loss of {self.name} is {float(loss.detach())} at step {self.budget.step}: use a smaller lr than {self.lr}, "
                "or convert with fit= first. The model is unchanged."
            )
        torch.autograd.backward(loss)
        optimizer.step()
        self.budget.step += 1
        self.budget.used_seconds += time.monotonic() - start

    def _evaluate(self) -> None:
        start = time.monotonic()
        with torch.no_grad():
            error = self.held_out_error()
        self.errors.append(error if math.isfinite(error) else math.inf)
        if self.errors[-1] <= min(self.errors):
            self.best = {name: tensor.detach().clone() for name, tensor in self.module.state_dict().items()}
        self.budget.used_seconds += time.monotonic() - start

    def _stalls(self) -> bool:
        """Whether the last evaluations did not improve the held-out error."""
        trained = self.errors[1:]
        return len(trained) > PATIENCE and min(trained[-PATIENCE:]) > min(trained)

    def _state(self, optimizer: torch.optim.Optimizer, generator: torch.Generator) -> dict[str, Any]:
        return {
            "optimizer": optimizer.state_dict(),
            "generator": generator.get_state(),
            "module": self.module.state_dict(),
            "best": self.best,
            "errors": self.errors,
            "step": self.budget.step,
            "used_seconds": self.budget.used_seconds,
        }

    def _load(self, state: dict[str, Any], optimizer: torch.optim.Optimizer, generator: torch.Generator) -> None:
        optimizer.load_state_dict(state["optimizer"])
        generator.set_state(state["generator"])
        self.module.load_state_dict(state["module"])
        self.best, self.errors = state["best"], list(state["errors"])
        self.budget.step, self.budget.used_seconds = state["step"], state["used_seconds"]
