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

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.core.update_rules import Frozen, Running
from anynorm.errors import SurgeryError
from anynorm.layers.norm import Norm
from anynorm.surgery.batches import Calibration, gather, twice
from anynorm.surgery.find import NormSite, all_or_nothing
from anynorm.surgery.replace import replacement

RIDGE = 1e-6
GOOD = 1e-4  # of the target's size: what is off by less has nothing to gain


class Pair(nn.Module):
    """Stands in a norm's place while it is fitted: the first half of a batch meets the old norm, the second the new one.

    Args:
        first: whether no pair has been met yet; there the halves must be the same.
    """

    def __init__(self, norms: tuple[Norm, Norm], row: dict[str, Any], first: list[bool]) -> None:
        super().__init__()
        self.norms, self.row, self.first = norms, row, first  # a tuple is no child: conditions are told to the pair
        self.calls = 0
        self._condition: Any = None

    @property
    def takes_condition(self) -> bool:
        """Whether a norm of the pair wants a class, domain or style."""
        return any(norm.takes_condition for norm in self.norms)

    def set_condition(self, condition: Any) -> None:
        """Set the condition of coming passes."""
        self._condition = condition

    def forward(self, x: Tensor, condition: Any = None) -> Tensor:
        """Fit the new norm if that is still to be done, and give both outputs."""
        given = self._condition if condition is None else condition
        halves = x.chunk(2)
        if len(halves) != 2 or len(halves[0]) != len(halves[1]) or (self.first[0] and not torch.equal(*halves)):
            raise SurgeryError(
                f"fit= runs the batch twice over, side by side, and at '{self.row['path']}' the two halves of the samples are "
                "not what they were: the model moves the samples about, or adds some. Convert without fit=, and train."
            )
        self.first[0] = False
        (old, new), (x_old, x_new) = self.norms, halves
        target = old.normalize(x_old, _half(given, 0))
        if not self.calls:
            _solve(new, x_new, target, _half(given, 1), self.row)
        self.calls += 1
        y = torch.cat([target, new.normalize(x_new, _half(given, 1))])
        for name in new.post_modules:
            y = getattr(new, name)(y)
        return y


def _half(condition: Any, which: int) -> Any:
    if isinstance(condition, tuple | list):
        return tuple(_half(one, which) for one in condition)
    return condition.chunk(2)[which] if isinstance(condition, Tensor) and condition.dim() and len(condition) > 1 else condition


def _take_statistics(norm: Norm, x: Tensor, condition: Any) -> None:
    """Let the population be these images."""
    if not norm.has_running_stats or isinstance(norm.update_rule, Frozen) or norm.norm_spec.num_stat_sets:
        return
    policy, tally = norm.update_rule, norm.num_batches_tracked
    seen = None if tally is None else tally.clone()
    try:
        norm.update_rule, norm.schedule_enabled = Running(1.0), False
        norm.train()
        norm.normalize(x, condition)
    finally:
        norm.eval()
        norm.update_rule, norm.schedule_enabled = policy, True
        if tally is not None and seen is not None:
            tally.copy_(seen)


def _solve(norm: Norm, x: Tensor, target: Tensor, condition: Any, row: dict[str, Any]) -> None:
    """Set γ and β by least squares, and note the error before and after, relative to the target's size.

    What fits as it is, is left; so is what has no γ and β of its own to set.
    """
    row["error_before"] = row["error_after"] = _error(norm.normalize(x, condition), target)
    if norm._parameters.get("weight") is None or norm._parameters.get("bias") is None:
        row["lost"] = [*row.get("lost", []), "not fitted: no plain γ and β"]
        return
    if row["error_before"] < GOOD:
        return
    _take_statistics(norm, x, condition)
    weight, bias = norm._parameters["weight"], norm._parameters["bias"]
    assert weight is not None  # for the type checker: looked at above
    assert bias is not None
    base, by_weight, by_bias = (_rows(norm, (weight, bias), values, x, condition) for values in ((0, 0), (1, 0), (0, 1)))
    u, v = by_weight - base, by_bias - base  # what γ and β are multiplied with: x̂ and 1, and a class's γ where there is one
    rest = target.double().transpose(0, 1).flatten(1) - base
    uu, uv, vv = ((one * other).mean(1) for one, other in ((u, u), (u, v), (v, v)))
    ur, vr = (u * rest).mean(1), (v * rest).mean(1)
    vv = vv.clamp(min=RIDGE)
    gamma = (ur - uv * vr / vv) / (uu - uv * uv / vv + RIDGE)
    weight.copy_(gamma)
    bias.copy_((vr - gamma * uv) / vv)
    row["error_after"] = _error(norm.normalize(x, condition), target)


def _rows(norm: Norm, affine: tuple[Tensor, Tensor], values: tuple[int, int], x: Tensor, condition: Any) -> Tensor:
    """Give a norm's output with some γ and β, a row a channel."""
    for tensor, value in zip(affine, values, strict=True):
        tensor.fill_(value)
    return norm.normalize(x, condition).double().transpose(0, 1).flatten(1)


def _error(y: Tensor, target: Tensor) -> float:
    return float((y - target).norm() / target.norm().clamp(min=1e-12))


def solve(model: nn.Module, made: dict[NormSite, Norm], fit: Calibration, rows: list[dict[str, Any]]) -> None:
    """Fit the new norms of a model on calibration batches."""
    batch = gather(fit.data)
    by_path = {row["path"]: row for row in rows}
    first = [True]
    pairs = {}
    for site, norm in made.items():
        old, _, _ = replacement(site, site.info, site.info.spec, {})
        pairs[site] = Pair((old.eval(), norm.eval()), by_path[site.path], first)
    modes = {module: module.training for module in [*model.modules(), *made.values()]} | {
        norm: site.module.training for site, norm in made.items()
    }
    root = next((pairs[site] for site in made if not site.holders), None)
    try:
        with all_or_nothing() as ledger, torch.no_grad():
            for site, pair in pairs.items():
                ledger.put(replace(site, module=made[site]), pair.eval())
            whole = (model if root is None else root).eval()
            fit.forward(whole, twice(batch))
            ledger.undo()
    finally:
        for module, mode in modes.items():
            module.training = mode
    if not any(pair.calls for pair in pairs.values()):
        raise SurgeryError("The calibration batch reached none of the new norms.")
    for site, pair in pairs.items():
        if pair.calls != 1:
            often = "fitted on the first of its calls alone" if pair.calls else "not fitted: the batch did not reach it"
            by_path[site.path]["lost"] = [*by_path[site.path].get("lost", []), often]
