"""How a model bears statistics that are wrong (xbn eq. 5).

μ̂ (1 + δ_μ)        σ̂² (1 + δ_σ)        δ_μ, δ_σ ~ uniform(−Δ, Δ), one a layer or one a channel
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anynorm.diagnostics.buffers import Slot, swap_buffers
from anynorm.diagnostics.estimation_shift import find_tracking_norms
from anynorm.diagnostics.observe import eval_mode
from anynorm.diagnostics.report import Report
from anynorm.errors import DiagnosticError
from anynorm.progress import track
from anynorm.surgery.find import Where

PER = ("layer", "channel")


@dataclass
class Draws:
    """The draws of a perturbation: iterating puts one after the other into the model, as long as its block lasts.

    Args:
        old: what is perturbed, as it was.
    """

    old: dict[Slot, Tensor]
    delta: float
    per: str
    seeds: int
    over: bool = False

    def __iter__(self) -> Iterator[int]:
        for seed in range(self.seeds):
            self.put(seed)
            yield seed

    @torch.no_grad()
    def put(self, seed: int) -> None:
        """Write the draw of a seed; the same seed draws the same directions for every Δ."""
        if self.over:
            raise DiagnosticError("The block of this perturbation has ended: draw inside it.")
        chance = torch.Generator().manual_seed(seed)
        for slot, old in self.old.items():
            noise = 2 * torch.rand(old.shape if self.per == "channel" else (), generator=chance, dtype=torch.float64) - 1
            slot.tensor.copy_(old.double() * (1 + self.delta * noise.to(old.device)))


@contextmanager
def perturb(model: nn.Module, delta: float, layers: Where = None, *, per: str = "layer", seeds: int = 5) -> Iterator[Draws]:
    """Perturb the kept statistics of a model inside a block; afterwards they are what they were. They show in eval mode alone.

    The first draw is there at once; iterating over what the block is given puts one after the other.

    Args:
        layers: which norms, as `where` of `anynorm.convert`; all that keep statistics, if not given.
        per: `layer`: one δ for all channels of a layer; `channel`: one for each.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).eval()
    >>> with perturb(model, 0.5, seeds=3) as draws:
    ...     found = [float(model[1].running_var[0]) for _ in draws]
    >>> len(set(found)), float(model[1].running_var[0])
    (3, 1.0)
    """
    _check(delta, per, seeds)
    sites = find_tracking_norms(model, layers)
    slots = [slot for kept in sites.values() for pair in kept.values() for slot in pair if slot is not None]
    old = {slot: slot.tensor for slot in slots}
    draws = Draws(old, delta, per, seeds)
    with swap_buffers(old):
        try:
            draws.put(0)
            yield draws
        finally:
            draws.over = True


def _check(delta: float, per: str, seeds: int) -> None:
    if not 0 <= delta <= 1:
        raise DiagnosticError(f"delta={delta} is no relative noise; above 1 a variance could be negative. Give 0 to 1.")
    if per not in PER:
        raise DiagnosticError(f"per={per!r} is none of {' '.join(PER)}.")
    if seeds < 1:
        raise DiagnosticError(f"seeds={seeds} draws nothing; give 1 or more.")


def perturbation_curve(
    model: nn.Module,
    score: Callable[[nn.Module], float],
    deltas: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
    layers: Where = None,
    *,
    per: str = "layer",
    seeds: int = 5,
) -> Report:
    """Score a model in eval mode under growing perturbation, several draws each.

    Args:
        score: of the model, such as its accuracy on test data.
    """
    sites = find_tracking_norms(model, layers)
    if not deltas:
        raise DiagnosticError("There is no Δ to perturb by: deltas is empty.")
    for delta in deltas:
        _check(delta, per, seeds)

    def scored() -> float:
        with eval_mode(model):
            return float(score(model))

    rows: list[dict[str, Any]] = []
    plain = scored()
    if not math.isfinite(plain):
        raise DiagnosticError(f"The score of the undisturbed model is {plain}.")
    for delta in track(list(deltas), "perturbing"):
        with perturb(model, delta, layers, per=per, seeds=seeds) as draws:
            scores = [scored() for _ in draws] if delta else [plain] * seeds
        mean = statistics.fmean(scores)
        spread = statistics.stdev(scores) if seeds > 1 and math.isfinite(mean) else 0.0
        rows.append({"delta": float(delta), "score": mean, "sd": spread, "lost": plain - mean, "scores": scores})
    half = next((row["delta"] for row in rows if plain > 0 and row["score"] < plain / 2), None)
    left = f"{rows[-1]['score']:.4g} are left at Δ = {rows[-1]['delta']:g}"
    told = left if half is None else f"half of it is lost at Δ = {half:g}"
    finding = f"{len(sites)} norms perturbed per {per}, {seeds} draws: score {plain:.4g} undisturbed; {told}."
    return Report(rows, finding, "perturbation", "lost", {"per": per, "layers": [site.path for site in sites]})
