"""Keeping a pretrained network's function when its norms change: γ and β of each new layer in closed form, without labels.

Calibration images go through the network twice in one batch, side by side: the first half meets the old norms, the second half
the new ones, and every other layer treats both alike. Where the two halves reach a norm, the old one's output t is the target of
the new one's normalised input x̂, channel by channel,

    γ = cov(x̂, t) / (var(x̂) + ridge)        β = mean(t) − γ mean(x̂)

and the second half goes on with γ x̂ + β: each layer is fitted on what the layers before it, already fitted, really give. One
forward pass of twice the images, whatever the depth. Statistics of the population are taken from the same images.

All images are one batch, so memory is that of one forward pass without gradients: take fewer images where it is short.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.core.norm import Norm
from anynorm.core.population import Frozen, Running
from anynorm.errors import SurgeryError
from anynorm.surgery.batches import gather, inputs_of
from anynorm.surgery.reading import Reading
from anynorm.surgery.replace import replacement
from anynorm.surgery.walk import Site, all_or_nothing

RIDGE = 1e-6


class Pair(nn.Module):
    """Stands in a norm's place while it is fitted: the first half of a batch meets the old norm, the second the new one."""

    def __init__(self, old: Norm, new: Norm, row: dict[str, Any]) -> None:
        super().__init__()
        self.old, self.new, self.row = old, new, row
        self.is_fitted = False

    def forward(self, x: Tensor, condition: Any = None) -> Tensor:
        """Fit the new norm if that is still to be done, and give both outputs."""
        first, second = x.chunk(2)
        target = Norm.forward(self.old, first, _half(condition, 0))
        if not self.is_fitted:
            _take_statistics(self.new, second, _half(condition, 1))
            _solve(self.new, second, target, _half(condition, 1), self.row)
            self.is_fitted = True
        y = torch.cat([target, Norm.forward(self.new, second, _half(condition, 1))])
        for name in getattr(self.new, "then", ()):
            y = getattr(self.new, name)(y)
        return y


def _half(condition: Any, which: int) -> Any:
    return condition.chunk(2)[which] if isinstance(condition, Tensor) and condition.dim() else condition


def _take_statistics(norm: Norm, x: Tensor, condition: Any) -> None:
    """Let the population be these images."""
    if not norm.keeps_population or isinstance(norm.population, Frozen) or norm.parts.ending.domains:
        return
    policy, tally = norm.population, norm.num_batches_tracked
    seen = None if tally is None else tally.clone()
    try:
        norm.population = Running(1.0)
        norm.train()
        Norm.forward(norm, x, condition)
    finally:
        norm.eval()
        norm.population = policy
        if tally is not None and seen is not None:
            tally.copy_(seen)


def _solve(norm: Norm, x: Tensor, target: Tensor, condition: Any, row: dict[str, Any]) -> None:
    """Set γ and β by least squares, and note the error before and after, relative to the target's size."""
    before = Norm.forward(norm, x, condition)
    row["error_before"] = _error(before, target)
    if norm.weight is None or norm.bias is None:
        row["error_after"] = row["error_before"]
        return
    norm.weight.fill_(1)
    norm.bias.fill_(0)
    plain = Norm.forward(norm, x, condition).double().transpose(0, 1).flatten(1)
    goal = target.double().transpose(0, 1).flatten(1)
    mean, goal_mean = plain.mean(1), goal.mean(1)
    centred = plain - mean[:, None]
    var, cov = centred.square().mean(1), (centred * (goal - goal_mean[:, None])).mean(1)
    gamma = cov / (var + RIDGE)
    norm.weight.copy_(gamma)
    norm.bias.copy_(goal_mean - gamma * mean)
    row["error_after"] = _error(Norm.forward(norm, x, condition), target)


def _error(y: Tensor, target: Tensor) -> float:
    return float((y - target).norm() / target.norm().clamp(min=1e-12))


def solve(
    model: nn.Module,
    made: dict[Site, Norm],
    data: Any,
    rows: list[dict[str, Any]],
    forward: Callable[[nn.Module, Any], Any] | None = None,
) -> None:
    """Fit the new norms of a model on calibration batches."""
    batch = gather(data)
    by_path = {row["path"]: row for row in rows}
    pairs = {}
    for site, norm in made.items():
        assert isinstance(site.reading, Reading)  # what could not be read was not made
        old, _, _ = replacement(site, site.reading, site.reading.spec, {})
        pairs[site] = Pair(old, norm, by_path[site.path])
    modes = {module: module.training for module in model.modules()}
    holders = {site: Site(site.paths, made[site], site.holders, site.reading) for site in made}
    root = next((pairs[site] for site in made if not site.holders), None)
    try:
        with all_or_nothing() as ledger, torch.no_grad():
            for site, pair in pairs.items():
                ledger.put(holders[site], pair.eval())
            whole = (model if root is None else root).eval()
            (forward or _call)(whole, inputs_of(batch, twice=True))
            ledger.undo()
    finally:
        for module, mode in modes.items():
            module.training = mode
    missed = [site.path for site, pair in pairs.items() if not pair.is_fitted]
    if len(missed) == len(pairs):
        raise SurgeryError("The calibration batch reached none of the new norms. Give forward=… if the model needs more than x.")
    for path in missed:
        by_path[path]["lost"] = [*by_path[path].get("lost", []), "not fitted: the batch did not reach it"]


def _call(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    return model(*inputs)
