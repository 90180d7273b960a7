"""Adversarial attacks on images in [0, 1], bounded in the L∞ norm: FGSM (Goodfellow et al. 2015) and PGD (Madry et al. 2018).

    FGSM    x' = clip(x + ε sign ∇ₓL(f(x), y))
    PGD     x' ← clip(x + clip(x' + α sign ∇L(f(x'), y) − x, −ε, ε)),    from x' = clip(x + U(−ε, ε)), k times

L is the cross entropy; clip without bounds clips to [0, 1]. During the attack, the norms of the model are in eval mode
(`norm_mode="eval"`: running statistics) or in train mode (`"train"`: statistics of the attacked batch), and all other layers are
in eval mode. If the norms use batch statistics in training, the two modes are different attacks; see docs/guide/robustness.md.

An attack leaves the model unchanged, even if it raises: parameters, their `.grad` and `requires_grad`, all buffers, the mode of
every module and torch's random state are restored.

Wrap a model that expects standardized images in `StandardizedModel(model, mean, std)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.diagnostics.buffers import preserve_buffers
from anynorm.errors import DataError, SpecError
from anynorm.lab.data.standardization import Standardized
from anynorm.surgery.find import find_norms
from anynorm.surgery.modes import eval_mode

EPSILON, STEP_SIZE = 8 / 255, 2 / 255
NORM_MODES = ("eval", "train")
Losses = Callable[[Tensor], Tensor]
"""A function of images that returns the cross entropy of each, (n,)."""


class StandardizedModel(Standardized, nn.Module):
    """Wrapper that standardizes images in [0, 1] before the model: model((images − mean) / std).

    Args:
        model: a model that expects standardized images.
        mean: mean of each channel of images in [0, 1]: a tensor (c,) or (c, 1, 1), or a list.
        std: standard deviation of each channel.

    >>> model = StandardizedModel(nn.Flatten(), mean=[0.5], std=[0.25])
    >>> model(torch.ones(1, 1, 1, 2))
    tensor([[2., 2.]])
    """

    def __init__(self, model: nn.Module, mean: Any, std: Any) -> None:
        super().__init__()
        self.model = model
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.as_tensor(values).detach().reshape(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Any:
        """Return what the model returns for the standardized images."""
        return self.model(self.standardize(images))


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack on images in [0, 1], bounded in the L∞ norm.

    Args:
        epsilon: maximum perturbation of a pixel value, in [0, 1].
        norm_mode: mode of the norms during the attack, "eval" or "train".

    Raises:
        SpecError: if a value is outside its range.
    """

    epsilon: float = EPSILON
    norm_mode: str = "eval"

    def __post_init__(self) -> None:
        _check_distance("epsilon", self.epsilon)
        if self.norm_mode not in NORM_MODES:
            raise SpecError(f"norm_mode must be one of {' '.join(NORM_MODES)}; got {self.norm_mode!r}.")

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return adversarial images; the model is not changed.

        Conditional norms use the condition of an enclosing `with anynorm.condition(model, value):`.

        Args:
            model: a model that returns logits (n, num_classes).
            images: floating-point images in [0, 1], (n, c, h, w).
            labels: the classes (n,), or class probabilities (n, num_classes).
            generator: CPU generator of the random starts; None for a new one with seed 0.

        Raises:
            DataError: if the images are not in [0, 1], or the logits have no gradient with respect to them.
        """
        check_images(images)
        with attack_mode(model, self.norm_mode):
            images, labels = images.detach().clone(), labels.detach().clone()  # inference tensors cannot be differentiated

            def losses(candidates: Tensor) -> Tensor:
                return nn.functional.cross_entropy(_logits(model, candidates), labels, reduction="none")

            return self.perturb(losses, images, generator or torch.Generator().manual_seed(0))

    def perturb(self, losses: Losses, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return perturbed images with larger losses."""
        raise NotImplementedError


@dataclass(frozen=True)
class FGSM(Attack):
    """The fast gradient sign method: one step of size ε, without a random start.

    >>> str(FGSM())
    'fgsm'
    """

    def perturb(self, losses: Losses, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return the images after one step of size ε."""
        return (images + self.epsilon * input_gradient(losses, images).sign()).clamp(0, 1)

    def __str__(self) -> str:
        return "fgsm"


@dataclass(frozen=True)
class PGD(Attack):
    """Projected gradient descent on the images.

    Args:
        steps: number of gradient steps.
        step_size: change of a pixel value per step, in [0, 1].
        random_start: whether to start at a random point within ε of the image instead of at the image.
        restarts: number of random starts; the result with the largest loss is returned for each image.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> images, labels = torch.rand(2, 1, 2, 2), torch.tensor([0, 2])
    >>> adversarial = PGD(4)(model, images, labels)
    >>> bool((adversarial - images).abs().max() <= 8 / 255 + 1e-6)
    True
    """

    steps: int = 10
    step_size: float = STEP_SIZE
    random_start: bool = True
    restarts: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_distance("step_size", self.step_size)
        for name in ("steps", "restarts"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} must be at least 1; got {getattr(self, name)}.")
        if self.restarts > 1 and not self.random_start:
            raise SpecError(f"restarts must be 1 without a random start, since all would be equal; got {self.restarts}.")

    def perturb(self, losses: Losses, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return the result with the largest loss over all restarts, for each image."""
        best = self._from_one_start(losses, images, generator)
        for _ in range(self.restarts - 1):
            other = self._from_one_start(losses, images, generator)
            with torch.no_grad():
                is_better = losses(other) > losses(best)
            best = torch.where(is_better.reshape(-1, *(1 for _ in images.shape[1:])), other, best)
        return best

    def _from_one_start(self, losses: Losses, images: Tensor, generator: torch.Generator) -> Tensor:
        result = images
        if self.random_start:
            noise = torch.rand(images.shape, generator=generator, dtype=images.dtype, device=generator.device).to(images.device)
            result = (images + self.epsilon * (2 * noise - 1)).clamp(0, 1)
        for _ in range(self.steps):
            moved = result + self.step_size * input_gradient(losses, result).sign()
            result = (images + (moved - images).clamp(-self.epsilon, self.epsilon)).clamp(0, 1)
        return result

    def __str__(self) -> str:
        return f"pgd:{self.steps}"


def parse(text: str, *, epsilon: float = EPSILON, step_size: float = STEP_SIZE, norm_mode: str = "eval") -> Attack:
    """Parse an attack: "fgsm", or "pgd:STEPS" with a random start.

    Args:
        text: the attack.
        epsilon, step_size, norm_mode: see `PGD`.

    Raises:
        SpecError: if the text has another form.

    >>> parse("pgd:4").steps, str(parse("pgd:4"))
    (4, 'pgd:4')
    """
    name, colon, steps = text.strip().partition(":")
    if name == "fgsm" and not colon:
        return FGSM(epsilon=epsilon, norm_mode=norm_mode)
    if name == "pgd" and steps.isdecimal():
        return PGD(int(steps), step_size, epsilon=epsilon, norm_mode=norm_mode)
    raise SpecError(f"an attack must be fgsm or pgd:STEPS, such as pgd:10; got {text!r}.")


@contextmanager
def attack_mode(model: nn.Module, norm_mode: str) -> Iterator[None]:
    """Set the modes of an attack and enable gradients inside a `with` block; restore buffers, modes and random state on exit."""
    with torch.inference_mode(mode=False), preserve_buffers(model), eval_mode(model), torch.enable_grad():
        if norm_mode == "train":
            for site in find_norms(model):
                site.module.training = True  # only the norm itself: a dropout that it applies stays in eval mode
        yield


def input_gradient(losses: Losses, images: Tensor) -> Tensor:
    """Return the gradient of the summed losses with respect to the images; gradients of parameters are not computed.

    Raises:
        DataError: if the losses are not differentiable with respect to the images.
    """
    images = images.detach().requires_grad_()
    total = losses(images).sum()
    gradient = None
    if total.requires_grad:
        (gradient,) = torch.autograd.grad(total, images, allow_unused=True)
    if gradient is None:
        raise DataError(
            "the logits must be differentiable with respect to the images; this model has no gradient. "
            "Look for detach(), no_grad or argmax inside it."
        )
    return gradient


def check_images(images: Tensor) -> None:
    """Check that images can be attacked.

    Raises:
        DataError: if they are not floating-point values in [0, 1].
    """
    if not images.is_floating_point():
        raise DataError(f"images must be floating-point values in [0, 1]; got {images.dtype}. Divide by 255: images / 255.")
    if images.numel() and not bool((images >= 0).all() and (images <= 1).all()):
        low, high = float(images.min()), float(images.max())
        hint = "Divide by 255: images / 255" if low >= 0 and high > 1 else "Standardize inside the model"
        hint = "Look for NaN in the data" if math.isnan(low) else hint
        raise DataError(
            f"images must be in [0, 1]; got values from {low:.3g} to {high:.3g}. {hint}; "
            "see anynorm.lab.attacks.StandardizedModel(model, mean, std)."
        )


def _logits(model: nn.Module, images: Tensor) -> Tensor:
    logits = model(images)
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.dim() != 2 or len(logits) != len(images):
        got = f"{logits.dtype} of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise DataError(f"the model must return logits of shape ({len(images)}, num_classes); got {got}.")
    return logits


def _check_distance(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        hint = f" Divide by 255: {value:g}/255." if value > 1 else ""
        raise SpecError(f"{name} must be in [0, 1], the range of images; got {value:g}.{hint}")
