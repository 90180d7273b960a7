"""Whether classes pull a network's weights equally hard, and in different directions (sabn sec. 3.1, eqs. 4 and 5).

For draws z_i of inputs and classes y_j, the gradients g_ij = ∇_θ L(model, z_i, y_j) of the convolutions right before each norm,
those of one stage together:

    norm_std    standard deviation over classes j of mean_i ‖g_ij‖₂
    g_inter     mean_i of the mean cosine of g_ij and g_ik over pairs j ≠ k

Lower is better for both. "Right before": the convolution or linear layer whose output the norm's input was made of. A weight that
is computed, as by spectral norm, is looked at through the parameters behind it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from anynorm.diagnostics.buffers import preserve_buffers
from anynorm.diagnostics.observe import feeding, norms_of
from anynorm.diagnostics.report import Report
from anynorm.errors import DiagnosticError
from anynorm.progress import track
from anynorm.surgery.find import Where

Loss = Callable[[nn.Module, Any, Any], Tensor]
Draw = Mapping[Any, Any]
Weights = dict[str, list[nn.Parameter]]


def stage_of(path: str) -> str:
    """Give the stage a layer belongs to: the first part of its path, with the number that follows.

    >>> stage_of("layer1.0.conv2"), stage_of("blocks.3.conv"), stage_of("conv1")
    ('layer1.0', 'blocks.3', 'conv1')
    """
    found = re.match(r"[^.]+(\.\d+(?=\.))?", path)
    return found.group() if found else path


def gradient_balance(
    model: nn.Module,
    draws: Draw | Iterable[Draw],
    loss: Loss,
    *,
    stage: Callable[[str], str] = stage_of,
    where: Where = None,
) -> Report:
    """Measure the balance of gradients between classes, in the mode the model is in; statistics and gradients are left alone.

    Args:
        draws: a mapping from class to batch, or several. A generator takes the same latents for every class of a draw.
        loss: of (model, batch, class): runs the model and gives a number to differentiate.
        stage: what the path of a layer belongs to; `str` keeps each layer apart.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    >>> def loss(model, x, label):
    ...     return nn.functional.cross_entropy(model(x), torch.full((len(x),), label))
    >>> report = gradient_balance(model, {0: torch.randn(16, 4), 1: torch.randn(16, 4)}, loss)
    >>> [row["stage"] for row in report]
    ['0']
    """
    norms = [site.module for site in norms_of(model, where)]
    given = [draws] if isinstance(draws, Mapping) else list(draws)
    classes = _classes(given)
    totals: dict[str, Stage] = {}
    with preserve_buffers(model), torch.enable_grad(), torch.compiler.set_stance("force_eager"):
        weights = _weights_before(model, norms, lambda: _check(loss(model, given[0][classes[0]], classes[0]), classes[0]))
        for draw in track(given, "differentiating"):
            gradients = [_gradients(_check(loss(model, draw[label], label), label), weights) for label in classes]
            for name, paths in _stages(weights, stage).items():
                update(totals.setdefault(name, Stage(paths)), [torch.cat([found[path] for path in paths]) for found in gradients])
    rows: list[dict[str, Any]] = [{"stage": name, "layers": len(total.paths), **compute(total)} for name, total in totals.items()]
    most = max(rows, key=lambda row: row["relative_std"])
    mean = sum(row["g_inter"] for row in rows) / len(rows)
    finding = (
        f"{len(classes)} classes, {len(given)} draws: gradient norms differ most in '{most['stage']}' "
        f"(std {most['norm_std']:.3g}, {100 * most['relative_std']:.0f} % of their mean); mean g_inter {mean:.3g}."
    )
    return Report(rows, finding, "gradient_balance", "relative_std", {"classes": classes})


class Stage:
    """What has been seen of the gradients of a stage: for each draw the norm of each class, and the mean cosine."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.norms: list[Tensor] = []
        self.cosines: list[Tensor] = []


def update(stage: Stage, gradients: list[Tensor]) -> None:
    """Take the gradients of the classes in one draw."""
    table = torch.stack(gradients).double()
    norms = table.norm(dim=1)
    unit = table / norms.clamp(min=torch.finfo(table.dtype).tiny)[:, None]
    cosines = unit @ unit.T
    pairs = len(table) * (len(table) - 1)
    stage.norms.append(norms)
    stage.cosines.append((cosines.sum() - cosines.trace()) / pairs)


def compute(stage: Stage) -> dict[str, float]:
    """Give norm and spread over classes, and g_inter."""
    by_class = torch.stack(stage.norms).mean(0)
    mean, std = float(by_class.mean()), float(by_class.std())
    g_inter = float(torch.stack(stage.cosines).mean())
    return {"norm_mean": mean, "norm_std": std, "relative_std": std / mean if mean else 0.0, "g_inter": g_inter}


def _classes(draws: list[Draw]) -> list[Any]:
    if not draws:
        raise DiagnosticError("There is no draw: give a mapping from class to batch, or several.")
    classes = list(draws[0])
    if len(classes) < 2:
        raise DiagnosticError(f"Gradients are balanced between classes; the first draw has {len(classes)} of them.")
    for index, draw in enumerate(draws):
        if set(draw) != set(classes):
            raise DiagnosticError(f"Draw {index} has the classes {list(draw)}, the first {classes}: they must be the same.")
    return classes


def _weights_before(model: nn.Module, norms: list[nn.Module], run: Callable[[], Any]) -> Weights:
    """Give the weights of the convolutions and linear layers that feed a norm, by path."""
    paths: dict[nn.Module, str] = {
        module: path for path, module in model.named_modules() if isinstance(module, _ConvNd | nn.Linear)
    }
    layers = feeding(paths, norms, run)
    if not layers:
        raise DiagnosticError("No convolution or linear layer ran before a norm: there is no gradient to look at.")
    found = {paths[layer]: [weight for name, weight in layer.named_parameters() if "weight" in name] for layer in layers}
    frozen = [path for path, weights in found.items() if not all(weight.requires_grad for weight in weights)]
    if frozen:
        raise DiagnosticError(
            f"'{frozen[0]}' does not require a gradient ({len(frozen)} such layers): unfreeze it, or use where=."
        )
    return found


def _check(loss: Any, label: Any) -> Tensor:
    """Refuse what cannot be differentiated."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise DiagnosticError(f"loss must give one number to differentiate; it gave {got}.")
    if not loss.requires_grad:
        raise DiagnosticError("loss gave a number that does not depend on the model: it was detached, or taken under no_grad.")
    if not bool(torch.isfinite(loss)):
        raise DiagnosticError(f"The loss of class {label!r} is {float(loss.detach())}: there is no gradient to look at.")
    return loss


def _gradients(loss: Tensor, weights: Weights) -> dict[str, Tensor]:
    flat = [weight for some in weights.values() for weight in some]
    found = torch.autograd.grad(loss, flat, allow_unused=True)
    by_weight = {weight: torch.zeros_like(weight) if grad is None else grad for weight, grad in zip(flat, found, strict=True)}
    return {path: torch.cat([by_weight[weight].flatten() for weight in some]) for path, some in weights.items()}


def _stages(weights: Weights, stage: Callable[[str], str]) -> dict[str, list[str]]:
    stages: dict[str, list[str]] = {}
    for path in weights:
        stages.setdefault(stage(path), []).append(path)
    return stages
