"""Balance of the gradients of classes: the spread of their norms and the cosine between them (sabn sec. 3.1, eqs. 4 and 5).

For draws z_i of inputs and classes y_j, g_ij = ∇_θ L(model, z_i, y_j) is the gradient with respect to the weights θ of the layers
that produce the inputs of the norms of one stage (convolutions or linear layers):

    grad_norm_std    standard deviation over classes j of mean_i ‖g_ij‖₂
    g_inter          mean_i of the mean cosine of g_ij and g_ik over pairs j ≠ k

The cosine is taken for each draw and then averaged; a draw of eq. 4 has one latent vector. Gradients of all classes are not kept
in memory: with unit vectors u_j of n classes, the mean cosine over pairs is (‖Σ u_j‖² − Σ ‖u_j‖²) / (n (n − 1)).

Lower is better for both. For a parametrized weight, such as one with spectral norm, θ are the original parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from anynorm.diagnostics.buffers import preserve_buffers
from anynorm.diagnostics.observe import find_producers
from anynorm.diagnostics.report import DiagnosticReport
from anynorm.diagnostics.validation import find_readable_norms
from anynorm.errors import DiagnosticError
from anynorm.progress import track
from anynorm.surgery.find import Where
from anynorm.table import pluralize

Loss = Callable[[nn.Module, Any, Any], Tensor]
Draw = Mapping[Any, Any]
Weights = dict[str, list[nn.Parameter]]


def stage_of(path: str) -> str:
    """Return the stage of a layer: the first part of its path, with the second if this is a number and not the last part.

    >>> stage_of("layer1.0.conv2"), stage_of("blocks.3.conv"), stage_of("conv1")
    ('layer1.0', 'blocks.3', 'conv1')
    """
    match = re.match(r"[^.]+(\.\d+(?=\.))?", path)
    return match.group() if match else path


def gradient_balance(
    model: nn.Module,
    draws: Draw | Iterable[Draw],
    loss: Loss,
    *,
    stage: Callable[[str], str] = stage_of,
    where: Where = None,
) -> DiagnosticReport:
    """Compare the gradients of classes, in the current mode of the model; running statistics and `.grad` are not changed.

    Args:
        model: the model.
        draws: a mapping from class to batch, or several mappings, one per draw. For a generator, use the same latents for every
            class of a draw.
        loss: a function `loss(model, batch, class)` that runs the model and returns a scalar tensor.
        stage: a function that returns the stage of a layer, given its path; pass `str` for one stage per layer.
        where: which norms to use, as in `anynorm.convert`; None for all.

    Returns:
        A report with one row per stage: `stage layers grad_norm_mean grad_norm_std relative_std g_inter`, where `relative_std`
        is `grad_norm_std / grad_norm_mean`.

    Raises:
        DiagnosticError: if the draws have different classes, the loss is not a differentiable finite scalar, or no norm has a
            layer with a trainable weight before it.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    >>> def loss(model, x, label):
    ...     return nn.functional.cross_entropy(model(x), torch.full((len(x),), label))
    >>> report = gradient_balance(model, {0: torch.randn(16, 4), 1: torch.randn(16, 4)}, loss)
    >>> [row["stage"] for row in report]
    ['0']
    """
    norms = [site.module for site in find_readable_norms(model, where)]
    draws = [draws] if isinstance(draws, Mapping) else list(draws)
    classes = _check_classes(draws)

    def checked_loss(draw: Draw, label: Any) -> Tensor:
        return _check_loss(loss(model, draw[label], label), label)

    with preserve_buffers(model), torch.enable_grad(), torch.compiler.set_stance("force_eager"):
        weights = _producer_weights(model, norms, lambda: checked_loss(draws[0], classes[0]))
        stages = {name: StageGradients(paths) for name, paths in _group_by_stage(weights, stage).items()}
        for draw in track(draws, "differentiating"):
            for label in classes:
                gradient = _gradients(checked_loss(draw, label), weights)
                for gradients in stages.values():
                    gradients.add(torch.cat([gradient[path] for path in gradients.paths]))
            for gradients in stages.values():
                gradients.end_draw()
    rows = [{"stage": name, "layers": len(gradients.paths), **gradients.compute()} for name, gradients in stages.items()]
    return DiagnosticReport(
        rows, _finding(rows, len(classes), len(draws)), "gradient_balance", "relative_std", {"classes": classes}
    )


def _finding(rows: list[dict[str, Any]], num_classes: int, num_draws: int) -> str:
    worst = max(rows, key=lambda row: row["relative_std"])
    g_inter = sum(row["g_inter"] for row in rows) / len(rows)
    draws = pluralize(num_draws, "draw")
    return (
        f"{num_classes} classes, {draws}: gradient norms differ most in '{worst['stage']}' (std {worst['grad_norm_std']:.3g}, "
        f"{100 * worst['relative_std']:.0f} % of their mean); mean g_inter {g_inter:.3g}. Lower is better for both: compare with "
        "a sandwich affine (sabn)."
    )


class StageGradients:
    """The gradient norm of each class and the mean cosine between classes, for each draw.

    Args:
        paths: the layers of the stage.
    """

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.norms: list[Tensor] = []
        self.cosines: list[Tensor] = []
        self._norms_of_draw: list[Tensor] = []
        self._unit_sum: Tensor | float = 0.0
        self._unit_squares: Tensor | float = 0.0

    def add(self, gradient: Tensor) -> None:
        """Add the flattened gradient of the next class of a draw."""
        gradient = gradient.double()
        norm = gradient.norm()
        unit = gradient / norm.clamp(min=torch.finfo(gradient.dtype).tiny)
        self._norms_of_draw.append(norm)
        self._unit_sum = self._unit_sum + unit
        self._unit_squares = self._unit_squares + unit.square().sum()

    def end_draw(self) -> None:
        """Compute the norms and the mean cosine of the classes of a draw."""
        num_classes = len(self._norms_of_draw)
        total = torch.as_tensor(self._unit_sum).square().sum()
        self.norms.append(torch.stack(self._norms_of_draw))
        self.cosines.append((total - self._unit_squares) / (num_classes * (num_classes - 1)))
        self._norms_of_draw, self._unit_sum, self._unit_squares = [], 0.0, 0.0

    def compute(self) -> dict[str, float]:
        """Return the columns of the row of this stage."""
        by_class = torch.stack(self.norms).mean(0)
        mean, std = float(by_class.mean()), float(by_class.std())
        return {
            "grad_norm_mean": mean,
            "grad_norm_std": std,
            "relative_std": std / mean if mean else 0.0,
            "g_inter": float(torch.stack(self.cosines).mean()),
        }


def _check_classes(draws: list[Draw]) -> list[Any]:
    if not draws:
        raise DiagnosticError("draws must be a mapping from class to batch, or several; got none.")
    classes = list(draws[0])
    if len(classes) < 2:
        raise DiagnosticError(f"Each draw must have at least 2 classes to compare; the first has {len(classes)}.")
    for index, draw in enumerate(draws):
        if set(draw) != set(classes):
            raise DiagnosticError(f"All draws must have the same classes; draw {index} has {list(draw)}, the first {classes}.")
    return classes


def _producer_weights(model: nn.Module, norms: list[nn.Module], run: Callable[[], Any]) -> Weights:
    """Return the weights of the convolutions and linear layers that produce the inputs of norms, by path."""
    paths: dict[nn.Module, str] = {
        module: path for path, module in model.named_modules() if isinstance(module, _ConvNd | nn.Linear)
    }
    layers = find_producers(paths, norms, run)
    if not layers:
        raise DiagnosticError("No convolution or linear layer ran before any norm: nothing to differentiate.")
    weights = {paths[layer]: [weight for name, weight in layer.named_parameters() if "weight" in name] for layer in layers}
    frozen = [path for path, parameters in weights.items() if not all(parameter.requires_grad for parameter in parameters)]
    if frozen:
        raise DiagnosticError(
            f"'{frozen[0]}' does not require a gradient ({len(frozen)} such layers). Unfreeze it, or use where= to leave it out."
        )
    return weights


def _check_loss(loss: Any, label: Any) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise DiagnosticError(f"loss must return a scalar tensor; got {got}.")
    if not loss.requires_grad:
        raise DiagnosticError("loss must depend on the model; it was detached, or computed under no_grad.")
    if not bool(torch.isfinite(loss)):
        raise DiagnosticError(f"The loss of class {label!r} must be finite; got {float(loss.detach())}.")
    return loss


def _gradients(loss: Tensor, weights: Weights) -> dict[str, Tensor]:
    """Return the flattened gradient of each layer by path; zero if the loss does not depend on the layer."""
    parameters = [parameter for group in weights.values() for parameter in group]
    grads = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    flat = {parameter: grad.flatten() for parameter, grad in zip(parameters, grads, strict=True)}
    return {path: torch.cat([flat[parameter] for parameter in group]) for path, group in weights.items()}


def _group_by_stage(weights: Weights, stage: Callable[[str], str]) -> dict[str, list[str]]:
    stages: dict[str, list[str]] = {}
    for path in weights:
        stages.setdefault(stage(path), []).append(path)
    return stages
